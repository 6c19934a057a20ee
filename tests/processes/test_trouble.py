"""Processes are stopped and killed, disks are full, descriptors run out: a table of what clients get, and how soon.

`./scripts/test -m long tests/processes/test_trouble.py -s` prints it; jaxinfer/processes/README.md has one.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import psutil
import pytest

from tests.children import children_with
from tests.cli.command_line import ENVIRONMENT, REAL, SIMULATED, SLOW_STEPS
from tests.llm.simulated import right_tokens
from tests.processes.serving import Answer, Serving, serving
from tests.processes.small_disk import fill, mounted
from tests.text.folders import byte_level_folder

pytestmark = [pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="needs Linux' tmpfs and ulimit")]

# CI runs it each time, and so a shorter one.
STOP_SECONDS, KILLS = (12.0, 3) if os.environ.get("CI") else (30.0, 10)
PROMPT = [1, 2, 3]
RIGHT = Answer(right_tokens(PROMPT, 3, seed=1), "[DONE]")
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
SMALL = ("--max-num-seqs", "1", "--max-num-batched-tokens", "8", "--max-scored", "1", "--max-model-len", "32")


class Row(NamedTuple):
    """One line of the table."""

    trouble: str
    clients: str
    again: str


Tell = Callable[[str, str, str], None]


@pytest.fixture(scope="module")
def tell() -> Iterator[Tell]:
    """Adds a row; the table is printed at the end."""
    rows: list[Row] = []
    yield lambda *row: rows.append(Row(*row))
    print("\n\n| trouble | clients | served again |\n| --- | --- | --- |")
    for row in rows:
        print(f"| {row.trouble} | {row.clients} | {row.again} |")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_level_folder(tmp_path / "model", chat_template="{{ messages[0].content }}")


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty temporary folder for servers."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(folder))
    return folder


class Observed(NamedTuple):
    """Seconds from a trouble on: until a stream ended and how, until readiness was red (None: never), until served."""

    stream: float
    end: str
    red: float | None
    served: float

    @property
    def clients(self) -> str:
        red = "readiness does not answer until then" if self.red is None else f"readiness red after {self.red:.1f} s"
        return f"stream ends with `{self.end}` after {self.stream:.1f} s; {red}"


async def observe(server: Serving, trouble: Callable[[], Any]) -> Observed:
    """What clients see of a trouble that comes while a stream is open. Returns when requests are served again."""
    (stream,) = await server.streams(1, prompt=PROMPT, max_tokens=40)
    start = time.monotonic()
    trouble()
    red = asyncio.create_task(until_red(server))
    answer = await stream
    ended = time.monotonic() - start
    async with asyncio.timeout(60):
        while await server.stream(prompt=PROMPT, max_tokens=3) != RIGHT:
            await asyncio.sleep(0.05)
    served = time.monotonic() - start
    red.cancel()
    seen = red.result() if red.done() and not red.cancelled() else None
    return Observed(ended, answer.end, None if seen is None else seen - start, served)


async def until_red(server: Serving) -> float:
    while True:
        try:
            if await server.status("/readyz") == 503:
                return time.monotonic()
        except aiohttp.ClientError:
            pass  # the API process has gone
        await asyncio.sleep(0.02)


async def chat(server: Serving) -> int:
    async with server.session.post(server.url + "/v1/chat/completions", json=CHAT) as response:
        return response.status


def template_worker(server: Serving) -> psutil.Process:
    return children_with("template_worker", server.process.pid, recursive=True)[0]


# Stopped


@pytest.mark.parametrize("kind", ["engine", "api"])
async def test_a_stopped_process(kind: str, folder: Path, tell: Tell) -> None:
    async with serving(folder, program=SLOW_STEPS) as server:
        stopped = server.child(kind)
        seen = await observe(server, stopped.suspend)
        assert not stopped.is_running()
        assert seen.end != "[DONE]"
        assert (seen.red is not None) == (kind == "engine")
    tell(f"SIGSTOP of the {kind} process", seen.clients, f"after {seen.served:.1f} s, by a new process")


async def test_a_stopped_supervisor(folder: Path, tell: Tell) -> None:
    async with serving(folder) as server:
        before = {child.pid for child in psutil.Process(server.process.pid).children()}
        server.process.send_signal(signal.SIGSTOP)
        end, answers = time.monotonic() + STOP_SECONDS, 0
        while time.monotonic() < end:
            assert await server.stream(prompt=PROMPT, max_tokens=3) == RIGHT
            answers += 1
            await asyncio.sleep(0.1)
        server.process.send_signal(signal.SIGCONT)
        await asyncio.sleep(10)
        assert {child.pid for child in psutil.Process(server.process.pid).children()} == before
    tell(f"SIGSTOP of the supervisor for {STOP_SECONDS:g} s", f"nothing: {answers} requests served", "all the time")


async def test_a_stopped_template_worker(folder: Path, tell: Tell) -> None:
    async with serving(folder) as server:
        assert await chat(server) == 200
        stopped = template_worker(server)
        start = time.monotonic()
        stopped.suspend()
        status = await chat(server)
        seconds = time.monotonic() - start
        assert status == 503
        assert await server.stream(prompt=PROMPT, max_tokens=3) == RIGHT
        assert await chat(server) == 200
        again = time.monotonic() - start
        assert not stopped.is_running()
    tell("SIGSTOP of the template worker", f"the chat that waits: 503 after {seconds:.1f} s", f"after {again:.1f} s")


async def test_all_processes_stopped(folder: Path, tell: Tell) -> None:
    async with serving(folder, program=SLOW_STEPS) as server:
        supervisor = psutil.Process(server.process.pid)
        processes = [supervisor, *supervisor.children(recursive=True)]
        stream = asyncio.create_task(server.stream(prompt=PROMPT, max_tokens=5))
        await server.until_running(1)
        for process in processes:
            process.suspend()
        await asyncio.sleep(STOP_SECONDS)
        for process in processes:
            process.resume()
        assert (await stream).end == "[DONE]"
        await asyncio.sleep(10)
        assert [supervisor, *supervisor.children(recursive=True)] == processes
    tell(f"SIGSTOP of all for {STOP_SECONDS:g} s (a laptop sleeps)", "streams go on to their end", "at once")


# Killed


@pytest.mark.parametrize("kind", ["engine", "api"])
async def test_a_killed_process(kind: str, folder: Path, tell: Tell) -> None:
    async with serving(folder, "--max-restarts", "100", program=SLOW_STEPS) as server:
        seen = [await observe(server, server.child(kind).kill) for _ in range(KILLS)]
        assert await server.metric("vllm:kv_cache_usage_perc") == 0
        assert "[DONE]" not in {one.end for one in seen}
    worst = max(seen, key=lambda one: one.stream)
    again = max(one.served for one in seen)
    tell(f"kill -9 of the {kind} process, {KILLS} times", f"at worst: {worst.clients}", f"after {again:.1f} s at worst")


async def test_a_killed_template_worker(folder: Path, tell: Tell) -> None:
    async with serving(folder) as server:
        assert await chat(server) == 200
        seconds, statuses = [], set()
        for _ in range(KILLS):
            template_worker(server).kill()
            start = time.monotonic()
            statuses.add(await chat(server))
            assert await chat(server) == 200
            seconds.append(time.monotonic() - start)
        assert statuses <= {200, 503}
    told = " or ".join(map(str, sorted(statuses)))
    tell(
        f"kill -9 of the template worker, {KILLS} times",
        f"the next chat: {told}",
        f"after {max(seconds):.1f} s at worst",
    )


async def test_a_killed_supervisor(folder: Path, temporary: Path, tell: Tell) -> None:
    seconds = []
    for _ in range(KILLS):
        async with serving(folder) as server:
            children = psutil.Process(server.process.pid).children(recursive=True)
            start = time.monotonic()
            server.process.kill()
            assert (await asyncio.to_thread(psutil.wait_procs, children, 20))[1] == []
            seconds.append(time.monotonic() - start)
            assert (await server.stream(prompt=PROMPT, max_tokens=3)).end == "ClientConnectorError"
        assert list(temporary.iterdir()) == []
    tell(
        f"kill -9 of the supervisor, {KILLS} times",
        f"connections are closed; all processes end within {max(seconds):.1f} s, and the temporary folder is empty",
        "by whoever starts the server",
    )


# Full and read-only


async def test_a_full_temporary_folder(
    folder: Path, tmp_path: Path, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted(tmp_path / "disk", "256k") as small:
        monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(small))
        async with serving(folder, program=SLOW_STEPS) as server:
            fill(small)
            for _ in range(3):
                assert await server.stream(prompt=PROMPT, max_tokens=3) == RIGHT
            killed = await observe(server, server.child("engine").kill)
            assert server.process.returncode is None
    tell("a full temporary folder", "nothing", f"all the time; after kill -9 of the engine after {killed.served:.1f} s")


async def answer_of(server: Serving) -> Answer:
    return await server.stream(prompt=[30, 31, 32], max_tokens=8)


def home(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """The user's cache folder, with programs and the key that signs them."""
    monkeypatch.setitem(ENVIRONMENT, "XDG_CACHE_HOME", str(path))


async def test_a_full_cache_folder(tmp_path: Path, tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    home(monkeypatch, tmp_path / "home")
    with mounted(tmp_path / "disk", "256k") as small:
        flags = (*SMALL, "--compile-cache-dir", str(small))
        fill(small)
        start = time.monotonic()
        async with serving(Path("demo"), *flags, program=REAL) as server:
            seconds = time.monotonic() - start
            assert (await answer_of(server)).end == "[DONE]"
    tell("a full cache folder", f"nothing: the start compiles ({seconds:.0f} s), and keeps nothing", "all the time")


async def test_a_read_only_cache_folder(tmp_path: Path, tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    with mounted(tmp_path / "disk", "256m") as cache:
        home(monkeypatch, cache)
        seconds, answers = [], []
        for options in ("remount,rw", "remount,ro"):
            subprocess.run(["mount", "-o", options, str(cache)], check=True)
            start = time.monotonic()
            async with serving(Path("demo"), *SMALL, program=REAL) as server:
                seconds.append(time.monotonic() - start)
                answers.append(await answer_of(server))
        assert answers[0] == answers[1]
        assert answers[0].end == "[DONE]"
    told = f"nothing: what it holds is used (start {seconds[1]:.0f} s, {seconds[0]:.0f} s when it was empty)"
    tell("a read-only cache folder", told, "all the time")


async def test_two_servers_that_start_on_one_cache(tmp_path: Path, tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    home(monkeypatch, tmp_path / "home")
    logs = [tmp_path / f"log{i}" for i in range(2)]

    async def start_and_ask(log: Path) -> Answer:
        async with serving(Path("demo"), *SMALL, program=REAL, log=log) as server:
            return await answer_of(server)

    first = await asyncio.gather(*map(start_and_ask, logs))
    assert first[0] == first[1]
    assert first[0].end == "[DONE]"
    again = tmp_path / "again"
    assert await start_and_ask(again) == first[0]
    text = again.read_text()
    assert "WARNING" not in text
    (made,) = [line for line in text.splitlines() if "programs came from the cache" in line]
    count, _, total = made.split()[:3]
    assert count == total
    tell("two servers that start on one cache", "nothing; the next start finds all programs", "all the time")


# Descriptors


async def test_64_file_descriptors(folder: Path, tell: Tell) -> None:
    limited = ("bash", "-c", 'ulimit -n 64; exec "$@"', "-", *SIMULATED)
    async with serving(folder, program=limited) as server:
        host, port = server.url.removeprefix("http://").split(":")
        before = psutil.Process(server.process.pid).children()
        idle = []
        for _ in range(100):
            try:
                idle.append(await asyncio.wait_for(asyncio.open_connection(host, port), 1))
            except (OSError, TimeoutError):
                break
        await asyncio.sleep(2)
        try:
            crowded = (await asyncio.wait_for(server.stream(prompt=PROMPT, max_tokens=3), 5)).end
        except TimeoutError:
            crowded = "waiting"
        for _, writer in idle:
            writer.close()
        start = time.monotonic()
        async with asyncio.timeout(30):
            while await server.stream(prompt=PROMPT, max_tokens=3) != RIGHT:
                await asyncio.sleep(0.05)
        seconds = time.monotonic() - start
        assert await chat(server) == 200
        assert psutil.Process(server.process.pid).children() == before
    tell(
        f"64 file descriptors, {len(idle)} idle connections",
        f"one more: `{crowded}`; nothing dies",
        f"{seconds:.1f} s after the idle ones have gone",
    )
