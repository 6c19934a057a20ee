"""An engine or an API process dies: clients are told, nothing hangs, and it is started again."""

import asyncio
import random
import time
from pathlib import Path

import psutil
import pytest

from tests.cli.command_line import SLOW_STEPS, slow
from tests.llm.simulated import right_tokens
from tests.processes.serving import Answer, serving
from tests.text.folders import byte_level_folder

PROMPT = [1, 2, 3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_level_folder(tmp_path / "model")


async def test_a_killed_engine_ends_streams_within_a_second_and_is_started_again(folder: Path) -> None:

    async with serving(folder, program=SLOW_STEPS) as server:
        streams = await server.streams(4, prompt=PROMPT, max_tokens=50)
        old = server.child("engine")
        killed = time.monotonic()
        old.kill()
        answers = await asyncio.gather(*streams)
        assert time.monotonic() - killed < 1
        assert {answer.end for answer in answers} == {"engine_unavailable"}
        assert await server.status("/readyz") == 503
        assert await server.status("/healthz") == 200
        refused = await server.stream(prompt=PROMPT, max_tokens=2)
        assert refused.end == "engine_unavailable"
        await server.until("/readyz", 200)
        assert server.child("engine").pid != old.pid
        answer = await server.stream(prompt=PROMPT, max_tokens=2)
        assert answer == Answer(right_tokens(PROMPT, 2, seed=1), "[DONE]")


@pytest.mark.long
async def test_a_killed_api_process_frees_its_requests_and_is_started_again(folder: Path) -> None:

    async with serving(folder, program=SLOW_STEPS) as server:
        streams = [asyncio.create_task(server.stream(prompt=PROMPT, max_tokens=50)) for _ in range(4)]
        await server.until_running(4)
        server.child("api").kill()
        answers = await asyncio.gather(*streams)
        assert all(answer.end not in ("[DONE]", "cut") for answer in answers)
        await server.until("/readyz", 200)
        async with asyncio.timeout(10):
            while await server.metric("vllm:num_requests_running"):
                await asyncio.sleep(0.05)
        assert await server.metric("vllm:kv_cache_usage_perc") == 0
        answer = await server.stream(prompt=PROMPT, max_tokens=2)
        assert answer == Answer(right_tokens(PROMPT, 2, seed=1), "[DONE]")


@pytest.mark.long
async def test_several_api_processes_share_a_port_and_an_engine(folder: Path) -> None:
    async with serving(folder, "--api-workers", "3") as server:
        answers = await asyncio.gather(*(server.stream(prompt=[1, 2, i], max_tokens=20) for i in range(60)))
        for i, answer in enumerate(answers):
            assert answer == Answer(right_tokens([1, 2, i], 20, seed=1), "[DONE]")
        assert len({server.child("api", i).pid for i in range(3)}) == 3
        assert sum(bool(server.child("api", i).cpu_times().user) for i in range(3)) == 3


@pytest.mark.long
async def test_an_engine_that_dies_too_often_ends_the_server(folder: Path) -> None:
    async with serving(folder, "--max-restarts", "1") as server:
        server.child("engine").kill()
        await server.until("/readyz", 503)
        await server.until("/readyz", 200)
        children = psutil.Process(server.process.pid).children()
        server.child("engine").kill()
        async with asyncio.timeout(20):
            assert await server.process.wait() == 1
        assert psutil.wait_procs(children, 5)[1] == []


async def test_children_end_with_a_parent_that_is_killed(folder: Path) -> None:
    async with serving(folder) as server:
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert len(children) >= 2
        server.process.kill()
        assert await asyncio.to_thread(lambda: psutil.wait_procs(children, 10)[1]) == []


@pytest.mark.long
async def test_an_api_process_that_does_not_hear_is_killed_in_the_end(folder: Path) -> None:
    async with serving(folder, "--drain-seconds", "0") as server:
        server.child("api").suspend()
        for _ in range(3):
            server.process.terminate()
            await asyncio.sleep(0.2)
        async with asyncio.timeout(20):
            await server.process.wait()


@pytest.mark.long
async def test_an_engine_that_cannot_begin_again_at_once_is_tried_again(folder: Path) -> None:
    """The model's folder is away for a while."""
    async with serving(folder, program=slow("vanishing")) as server:
        away = folder.with_name("away")
        folder.rename(away)
        server.child("engine").kill()
        await server.until("/readyz", 503)
        await asyncio.sleep(1.5)
        away.rename(folder)
        await server.until("/readyz", 200)
        assert server.process.returncode is None


@pytest.mark.long
async def test_twenty_kills_under_load(folder: Path) -> None:
    """Every request ends: whole, with an error event, or refused; and one that is whole is right."""
    rng, kills = random.Random(5), 20
    async with serving(folder, "--max-restarts", "100", "--max-num-seqs", "8") as server:
        stop = asyncio.Event()
        ends: dict[str, int] = {}

        async def client(seed: int) -> None:
            own = random.Random(seed)
            while not stop.is_set():
                prompt, count = [own.randrange(200) for _ in range(own.randint(1, 12))], own.randint(1, 40)
                async with asyncio.timeout(20):
                    answer = await server.stream(prompt=prompt, max_tokens=count)
                right = right_tokens(prompt, count, seed=1)
                assert answer.tokens == right[: len(answer.tokens)]
                assert answer.end in ("[DONE]", "engine_unavailable"), answer
                assert answer.end != "[DONE]" or answer.tokens == right
                ends[answer.end] = ends.get(answer.end, 0) + 1
                if answer.end != "[DONE]":
                    await asyncio.sleep(0.05)

        clients = [asyncio.create_task(client(i)) for i in range(16)]
        for _ in range(kills):
            await asyncio.sleep(rng.random())
            before = ends.get("[DONE]", 0)
            server.child("engine").kill()
            await server.until("/readyz", 503, 5)
            await server.until("/readyz", 200, 30)
            async with asyncio.timeout(20):
                while ends.get("[DONE]", 0) == before:  # new requests are served
                    await asyncio.sleep(0.01)
        stop.set()
        await asyncio.gather(*clients)
        assert ends["engine_unavailable"] >= kills
        assert await server.metric("vllm:kv_cache_usage_perc") == 0
        print(f"{kills} kills: {ends}")
