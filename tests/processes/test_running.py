"""What a parent hears of a child that tells too much, and what becomes of one that cannot be started."""

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.errors import JaxinferError, ParameterError
from jaxinfer.processes import supervisor
from jaxinfer.processes.child import pack_error, pack_settings, unpack_error
from jaxinfer.processes.running import RunningChild
from jaxinfer.processes.supervisor import Supervisor
from jaxinfer.serving.config import ServerConfig
from tests.processes import adopting

TELLS = "import os, sys; sys.stdin.readline(); os.write(int(sys.argv[1]), {}); sys.exit(2)"


async def test_a_line_that_is_too_long_leaves_nobody_waiting(caplog: pytest.LogCaptureFixture):
    child = await RunningChild.start([sys.executable, "-c", TELLS.format("b'x' * 60_000 + b'y' * 60_000")], {})
    async with asyncio.timeout(20):
        assert await child.ready() is None
        await child.wait()
    assert "cannot be read" in caplog.text


def test_a_long_error_is_cut():
    packed = pack_error(ParameterError("architectures", "A" * 100_000 + " is not one of these: Llama"))
    assert len(packed["message"]) < 5_000
    again = unpack_error(packed)
    assert isinstance(again, ParameterError)
    assert str(again).startswith("architectures: AAAA")
    assert str(again).endswith("AAAA is not one of these: Llama")


class Starts:
    """Stands for RunningChild: its children are ready at once; the starts that `fails` numbers are refused."""

    def __init__(self, fails: set[int]):
        self.fails = fails
        self.count = 0
        self.children: list[RunningChild] = []

    async def start(self, *args: object, **settings: object) -> RunningChild:
        self.count += 1
        if self.count in self.fails:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        code = TELLS.format("""b'{"ready": "here"}\\n'""").replace("sys.exit(2)", "sys.stdin.read()")
        self.children.append(await RunningChild.start([sys.executable, "-c", code], {}))
        return self.children[-1]


def supervising(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> asyncio.Task[int]:
    monkeypatch.setattr(supervisor, "RunningChild", starts)
    options = ServerConfig(engine_address="unix:/nowhere", heartbeat_seconds=0)
    return asyncio.create_task(Supervisor(EngineConfig(), options, [socket.socket()], lambda message: None).run())


async def test_a_restart_that_the_system_refuses_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    starts = Starts(fails={2})
    running = supervising(starts, monkeypatch)
    async with asyncio.timeout(30):
        while not starts.children:
            await asyncio.sleep(0.01)
        await starts.children[0].ready()
        starts.children[0].send(signal.SIGKILL)
        while len(starts.children) < 2 and not running.done():
            await asyncio.sleep(0.01)
    assert not running.done()
    assert starts.count == 3
    running.cancel()
    await asyncio.wait([running])


async def test_what_waits_to_be_started_again_is_not_while_the_server_ends(monkeypatch: pytest.MonkeyPatch):
    count = 0

    async def run_child(what: str, start: object, on_ready: Callable[[str], None]) -> str:
        nonlocal count
        count += 1
        if count == 1:
            on_ready("here")
        return "status 1"

    monkeypatch.setattr(supervisor, "_run_child", run_child)
    server = Supervisor(EngineConfig(), ServerConfig(), [], lambda message: None)
    keeping = asyncio.create_task(server._keep_engine("unix:/nowhere"))
    while count < 2:
        await asyncio.sleep(0.01)
    server._stopping.set()
    assert await asyncio.wait_for(keeping, 20) == 0
    assert count == 2


async def test_a_first_start_that_the_system_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(JaxinferError, match="an API process cannot be started: Resource temporarily unavailable"):
        await supervising(Starts(fails={1}), monkeypatch)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux' PR_SET_CHILD_SUBREAPER")
def test_what_others_leave_behind_is_waited_for():
    """As the first process of a container has to: here one that adopts the orphans of its own descendants."""
    subprocess.run([sys.executable, "-m", adopting.__name__], check=True, timeout=60)


def test_a_child_has_the_keys_that_were_read_when_the_server_started(tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("first\nsecond\n")
    settings = pack_settings(EngineConfig(), ServerConfig(api_key_file=str(file)))
    file.unlink()
    code = "from jaxinfer.processes.child import Parent; print(*Parent().server.api_keys)"
    with subprocess.Popen(
        [sys.executable, "-c", code, "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps({**settings, "folder": str(tmp_path / "none")}) + "\n")
        child.stdin.flush()
        assert child.stdout.readline() == "first second\n"
