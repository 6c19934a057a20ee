"""A process stalls: it is noticed, clients are told, and another takes its place. One that only slept goes on."""

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.cli.command_line import SLOW_STEPS, slow
from tests.llm.simulated import right_tokens
from tests.processes.serving import Answer, Serving, serving
from tests.text.folders import byte_level_folder

PROMPT = [1, 2, 3]
WATCHED = ("--heartbeat-seconds", "0.5")
SILENCE = 1.5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_level_folder(tmp_path / "model")


def restarted(server: Serving) -> list[int]:
    return [child.pid for child in psutil.Process(server.process.pid).children()]


@pytest.mark.long
async def test_a_stopped_engine_ends_its_streams_and_is_replaced(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with serving(folder, *WATCHED, program=SLOW_STEPS, log=log) as server:
        streams = await server.streams(3, prompt=PROMPT, max_tokens=50)
        old = server.child("engine")
        old.suspend()
        await server.until("/readyz", 503)
        assert {answer.end for answer in await asyncio.gather(*streams)} == {"engine_unavailable"}
        assert await server.status("/healthz") == 200
        await server.until("/readyz", 200)
        assert not old.is_running()
        assert server.child("engine").pid != old.pid
        assert await server.stream(prompt=PROMPT, max_tokens=2) == Answer(right_tokens(PROMPT, 2, seed=1), "[DONE]")
        assert await server.metric("jaxinfer:restarts_total", process="engine") == 1
    text = log.read_text()
    assert f"the engine's process, pid {old.pid}, has stalled" in text
    assert "processes/child.py" in text.partition("has stalled")[2]  # a stack that rests while they are written


@pytest.mark.long
async def test_a_stopped_api_process_is_replaced(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with serving(folder, *WATCHED, program=SLOW_STEPS, log=log) as server:
        stream = asyncio.create_task(server.stream(prompt=PROMPT, max_tokens=50))
        await server.until_running(1)
        old = server.child("api")
        old.suspend()
        assert (await stream).end not in ("[DONE]", "cut")
        await server.until("/readyz", 200)
        assert server.child("api").pid != old.pid
        async with asyncio.timeout(20):
            while await server.metric("vllm:num_requests_running"):
                await asyncio.sleep(0.05)
        assert await server.stream(prompt=PROMPT, max_tokens=2) == Answer(right_tokens(PROMPT, 2, seed=1), "[DONE]")
    assert f"an API process, pid {old.pid}, has stalled" in log.read_text()


@pytest.mark.long
async def test_a_stopped_supervisor_blames_nobody(folder: Path) -> None:
    async with serving(folder, *WATCHED) as server:
        before = restarted(server)
        server.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(2 * SILENCE)
        assert await server.stream(prompt=PROMPT, max_tokens=5) == Answer(right_tokens(PROMPT, 5, seed=1), "[DONE]")
        server.process.send_signal(signal.SIGCONT)
        await asyncio.sleep(2 * SILENCE)
        assert restarted(server) == before
        assert await server.status("/readyz") == 200


@pytest.mark.long
async def test_a_machine_that_sleeps_loses_nothing(folder: Path) -> None:
    """All processes stop at once, and the clock goes on: nobody was silent while the others ran."""
    async with serving(folder, *WATCHED, program=SLOW_STEPS) as server:
        stream = asyncio.create_task(server.stream(prompt=PROMPT, max_tokens=6))
        await server.until_running(1)
        processes = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
        before = restarted(server)
        for process in processes:
            process.suspend()
        await asyncio.sleep(4 * SILENCE)
        for process in processes:
            process.resume()
        assert await stream == Answer(right_tokens(PROMPT, 6, seed=1), "[DONE]")
        await asyncio.sleep(2 * SILENCE)
        assert restarted(server) == before


@pytest.mark.long
async def test_a_step_that_stalls_ends_the_engine(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with serving(folder, "--step-timeout", "1", program=slow("step"), log=log) as server:
        old = server.child("engine")
        answer = await server.stream(prompt=PROMPT, max_tokens=5)
        assert answer == Answer([], "engine_unavailable")
        await server.until("/readyz", 200)
        assert server.child("engine").pid != old.pid
    text = log.read_text()
    assert "a step takes more than 1 s (--step-timeout)" in text
    assert "in collect" in text.partition("--step-timeout")[2]  # where it hangs


@pytest.mark.long
async def test_every_process_writes_its_stacks_when_it_is_asked(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with serving(folder, log=log) as server:
        for pid, module in (
            (server.process.pid, "cli/serve.py"),
            (server.child("engine").pid, "processes/engine.py"),
            (server.child("api").pid, "processes/api.py"),
        ):
            os.kill(pid, signal.SIGUSR1)
            async with asyncio.timeout(20):
                while f'{module}"' not in log.read_text():
                    await asyncio.sleep(0.05)
        assert await server.stream(prompt=PROMPT, max_tokens=2) == Answer(right_tokens(PROMPT, 2, seed=1), "[DONE]")


@pytest.mark.long
async def test_nobody_watches_where_that_is_asked_for(folder: Path) -> None:
    async with serving(folder, "--heartbeat-seconds", "0", "--step-timeout", "0") as server:
        engine = server.child("engine")
        engine.suspend()
        await asyncio.sleep(SILENCE)
        assert await server.status("/readyz") == 200
        engine.resume()
        assert await server.stream(prompt=PROMPT, max_tokens=2) == Answer(right_tokens(PROMPT, 2, seed=1), "[DONE]")
