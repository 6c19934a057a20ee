"""RunningChild: a process that was started, as its parent sees it."""

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any, Self

from jaxinfer.engine.watchdog import STACKS_AND_END, Watchdog
from jaxinfer.processes.child import unpack_error

log = logging.getLogger(__name__)

_LOADING = 10
"""Factor of a child's longest silence until it is ready: loading holds Python's lock for seconds at times."""

_STACKS_SECONDS = 1.0


class RunningChild:
    """A child of `child.Parent`'s kind. It leads a session of its own: a terminal's Ctrl-C is its parent's to hear.

    silence_seconds: how long it may be silent once it is ready; 0 where nobody watches.
    """

    def __init__(self, process: asyncio.subprocess.Process, told: asyncio.StreamReader, silence_seconds: float):
        self._process = process
        self._told = told
        self._silence_seconds = silence_seconds or math.inf
        self._watchdog = Watchdog(_LOADING * self._silence_seconds)
        self._ready: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        settings: dict[str, Any],
        files: Sequence[int] = (),
        *,
        silence_seconds: float = 0.0,
        variables: Mapping[str, str] | None = None,
    ) -> Self:
        """Runs `command`. files: descriptors that the child inherits. variables: of its environment, where the parent
        does not set them. Raises OSError where there are no more processes or descriptors to be had.
        """
        reading, writing = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                str(writing),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(writing, *files),
                env={**(variables or {}), **os.environ},
                start_new_session=True,
            )
        except BaseException:
            os.close(reading)
            raise
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
        return cls(process, told, silence_seconds)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self) -> str | None:
        """Wait until the process is ready and return its message; None if it ended before. Raises its error."""
        return await asyncio.shield(self._ready)

    async def stalled(self) -> None:
        """Returns once it has been silent for too long."""
        while not self._watchdog.expired():
            await asyncio.sleep(self._watchdog.interval)

    async def end_stalled(self) -> None:
        """Has it write its stacks and end, or kills it where it cannot. A stopped process runs on for that."""
        self.send(STACKS_AND_END)
        self.send(signal.SIGCONT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.wait(), _STACKS_SECONDS)
        self.send(signal.SIGKILL)

    async def wait(self) -> int:
        """Its exit status, negative for a signal."""
        return await self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; without effect once it has ended."""
        # NOTE: Popen's own way looks first whether the process has ended, and takes its status from who waits for it.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def _read(self) -> None:
        """Takes what it tells, until it ends."""
        try:
            while line := await self._told.readline():
                self._watchdog.feed()
                if line.strip() and not self._ready.done():
                    self._take(json.loads(line))
        except ValueError as error:
            log.error("what process %d tells cannot be read, so that it is not heard any more: %s", self.pid, error)
        finally:
            if not self._ready.done():
                self._ready.set_result(None)

    def _take(self, message: dict[str, Any]) -> None:
        if "error" in message:
            self._ready.set_exception(unpack_error(message["error"]))
        else:
            self._ready.set_result(message["ready"])
            self._watchdog = Watchdog(self._silence_seconds)
