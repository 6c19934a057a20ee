"""RunningChild: a process that was started, as its parent sees it."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Sequence
from typing import Any, Self

from jaxinfer.processes.child import unpack_error


class RunningChild:
    """A child of `child.Parent`'s kind. It leads a session of its own: a terminal's Ctrl-C is its parent's to hear."""

    def __init__(self, process: asyncio.subprocess.Process, told: asyncio.StreamReader):
        self._process = process
        self._told = told

    @classmethod
    async def start(cls, command: Sequence[str], settings: dict[str, Any], files: Sequence[int] = ()) -> Self:
        """Runs `command`; files: descriptors that the child inherits."""
        reading, writing = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                str(writing),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(writing, *files),
                start_new_session=True,
            )
        finally:
            os.close(writing)
        told = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(told), os.fdopen(reading, "rb", 0)
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(settings).encode() + b"\n")
        with contextlib.suppress(ConnectionError):
            await process.stdin.drain()
        return cls(process, told)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self) -> str | None:
        """What it says when it can be used; None where it ended before. Raises what it says is wrong."""
        line = await self._told.readline()
        if not line:
            return None
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise unpack_error(message["error"])
        return message["ready"]

    async def wait(self) -> int:
        """Its exit status, negative for a signal."""
        return await self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; without effect once it has ended."""
        # NOTE: Popen's own way looks first whether the process has ended, and takes its status from who waits for it.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)
