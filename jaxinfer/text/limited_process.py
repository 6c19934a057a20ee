"""LimitedProcess: a process that answers one job after another within time limits, and is replaced where it fails.

Jobs and answers are frames: four bytes of length, big-endian, then the bytes.
"""

import contextlib
import os
import select
import signal
import struct
import subprocess
import time
from collections.abc import Sequence
from typing import BinaryIO

OUT_OF_MEMORY = 3
"""Exit status of a process that a job made too large."""

_CHUNK = 1 << 20
_KEPT = frozenset({"PATH", "HOME", "TMPDIR", "TZ", "LANG", "LANGUAGE", "VIRTUAL_ENV", "GCONV_PATH"})
_KEPT_PREFIXES = ("LC_", "PYTHON", "LD_", "DYLD_", "MALLOC_", "RAYON_", "TOKENIZERS_", "COVERAGE_")
"""Prefixes of variables that locate programs, libraries and modules, set the locale, and limit native code."""


class Exceeded(Exception):
    """A job took too much of what the text names: `memory` or `processor time`."""


class Late(Exception):
    """No answer came in time."""


class ProcessLost(Exception):
    """The process ended, or could not be started; the job need not be the reason."""


class LimitedProcess:
    """One process, started with `start` and ended with `close`. Not safe to use from several threads at once.

    wall_seconds: time from a job's first byte to the last byte of its answer.
    """

    def __init__(self, command: Sequence[str], wall_seconds: float):
        self._command = command
        self._wall_seconds = wall_seconds
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts the process, in place of one that may run. Raises Lost."""
        self.close()
        try:
            # A session of its own keeps the terminal's Ctrl-C away from it; it ends when its input does.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
                env=_environment(),
            )
        except OSError as error:
            raise ProcessLost(f"cannot be started: {error.strerror}") from None
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    def ask(self, job: bytes) -> bytes:
        """The answer to a job. Raises Exceeded, Late or Lost; the process has ended then."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise ProcessLost("does not run")
        deadline = time.monotonic() + self._wall_seconds
        try:
            self._write(process.stdin.fileno(), struct.pack(">I", len(job)), deadline)
            self._write(process.stdin.fileno(), job, deadline)
            size = struct.unpack(">I", self._read(process.stdout.fileno(), 4, deadline))[0]
            return self._read(process.stdout.fileno(), size, deadline)
        except OSError:
            self._raise_ended()
            raise
        except (Exceeded, Late, ProcessLost):
            self.close()
            raise

    def kill(self) -> None:
        """Ends the process from another thread than the one that may be asking, which then raises Lost."""
        process = self._process  # the other thread may close it meanwhile
        if process is not None:
            _kill(process)

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is None:
            return
        _kill(process)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()

    def _write(self, descriptor: int, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            self._wait([], [descriptor], deadline)
            rest = rest[os.write(descriptor, rest[:_CHUNK]) :]

    def _read(self, descriptor: int, size: int, deadline: float) -> bytes:
        chunks, missing = [], size
        while missing:
            self._wait([descriptor], [], deadline)
            chunk = os.read(descriptor, min(missing, _CHUNK))
            if not chunk:
                self._raise_ended()
            chunks.append(chunk)
            missing -= len(chunk)
        return b"".join(chunks)

    def _wait(self, readable: list[int], writable: list[int], deadline: float) -> None:
        poll = select.poll()  # `select` knows no descriptors above 1023
        for descriptor in readable:
            poll.register(descriptor, select.POLLIN)
        for descriptor in writable:
            poll.register(descriptor, select.POLLOUT)
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise Late

    def _raise_ended(self) -> None:
        assert self._process is not None
        status = self._process.wait()
        self.close()
        if status in (OUT_OF_MEMORY, -signal.SIGABRT):  # native code aborts where it gets no memory
            raise Exceeded("memory")
        if status == -signal.SIGXCPU:
            raise Exceeded("processor time")
        raise ProcessLost(f"ended with status {status}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process together with its forks, if any: the session is its own."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """Return the variables that a process needs to run. The rest stays here, such as API keys and tokens of hubs and
    clouds: a list of secrets would never be complete.
    """
    return {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}


def read_frame(stream: BinaryIO) -> bytes | None:
    """The other end: the next frame of standard input, or None where there is no more."""
    head = stream.read(4)
    return stream.read(struct.unpack(">I", head)[0]) if len(head) == 4 else None


def write_frame(stream: BinaryIO, data: bytes) -> None:
    """The other end: an answer. Ends the process where nobody reads it."""
    try:
        stream.write(struct.pack(">I", len(data)))
        stream.write(data)
        stream.flush()
    except BrokenPipeError:
        os._exit(0)
