"""A full disk ends no process: not the temporary folder's, and not that of the log."""

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.cli.command_line import ENVIRONMENT
from tests.llm.simulated import right_tokens
from tests.material import REPOSITORY
from tests.processes.serving import SIMULATED, Answer, serving
from tests.processes.small_disk import fill, mounted
from tests.text.folders import byte_level_folder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux' /proc, /dev/full and tmpfs")

PROMPT = [1, 2, 3]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_level_folder(tmp_path / "model")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    with mounted(tmp_path / "disk", "256k") as disk:
        yield disk


def shared_files(process: psutil.Process) -> list[str]:
    """Files that a process has mapped to write to them."""
    lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    fields = [line.split(maxsplit=5) for line in lines]
    return [line[5] for line in fields if line[1].startswith("rw-s") and len(line) > 5]


@pytest.mark.long
async def test_no_process_writes_to_a_mapped_file(folder: Path) -> None:
    """A full disk would end it by SIGBUS."""
    async with serving(folder, "--api-workers", "2") as server:
        await server.stream(prompt=PROMPT, max_tokens=2)
        children = psutil.Process(server.process.pid).children()
        processes = [psutil.Process(server.process.pid), *children]
        mapped = [name for process in processes for name in shared_files(process)]
    assert len(mapped) >= 3
    assert {name for name in mapped if name.startswith("/") and not name.startswith("/memfd:")} == set()


@pytest.mark.long
async def test_a_full_temporary_folder_is_not_noticed(
    folder: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(small_disk))
    right = Answer(right_tokens(PROMPT, 5, seed=1), "[DONE]")
    async with serving(folder) as server:
        assert [entry.name for entry in small_disk.iterdir()] != []
        fill(small_disk)
        for _ in range(3):
            assert await server.stream(prompt=PROMPT, max_tokens=5) == right
        for kind in ("engine", "api"):
            server.child(kind).kill()
            await asyncio.sleep(0.5)
            await server.until("/readyz", 200)
            assert await server.stream(prompt=PROMPT, max_tokens=5) == right
        assert server.process.returncode is None
    async with serving(folder) as server:  # and one that starts then
        assert await server.stream(prompt=PROMPT, max_tokens=5) == right


@pytest.mark.long
async def test_a_log_that_takes_nothing_is_not_noticed(folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ("--port", str(port), "--log-level", "debug", "--access-log")
    with Path("/dev/full").open("w") as full:
        process = await asyncio.create_subprocess_exec(
            *SIMULATED, "serve", str(folder), *flags,
            stdout=full, stderr=full, cwd=REPOSITORY, env={**os.environ, **ENVIRONMENT},
        )  # fmt: skip
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            while not await answers(session):
                assert process.returncode is None
                await asyncio.sleep(0.1)
            body = {"prompt": PROMPT, "max_tokens": 2}
            async with session.post("/v1/completions", json=body) as response:
                assert response.status == 200
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        if process.returncode is None:
            process.kill()


async def answers(session: aiohttp.ClientSession) -> bool:
    try:
        async with session.get("/readyz") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False
