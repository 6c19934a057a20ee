"""TemplateProcess: the parent's end of the process that renders a chat template."""

import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jaxinfer.errors import ModelError, ParameterError, WorkerLostError
from jaxinfer.text.template_worker import OUT_OF_MEMORY

_WORKER = Path(__file__).with_name("template_worker.py")


@dataclass(frozen=True)
class TemplateLimits:
    """What one rendering may use."""

    cpu_seconds: float = 2.0
    """Processor time; the kernel counts whole seconds and rounds up."""
    wall_seconds: float = 10.0
    """Time from job to answer, writing both included."""
    memory_bytes: int = 512 * 2**20
    """Address space of the process."""
    max_chars: int = 4_000_000
    """Characters of the rendered text."""


class _Exceeded(Exception):
    """A job took more than it may; the text says of what."""


class _Lost(Exception):
    """The process stalled, or was ended by others, which need not be the job's fault; the text says what is known."""


class TemplateProcess:
    """Renders one template in a process that is started when it is first needed, and replaced after a failure."""

    def __init__(self, template: str, limits: TemplateLimits):
        self._template = template
        self._limits = limits
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._names: frozenset[str] | None = None
        self._fields: frozenset[str] = frozenset()

    def names(self) -> frozenset[str]:
        """The variables that the template reads; once known, at once. Raises ModelError where it is not a template."""
        if self._names is None:
            with self._lock:
                try:
                    self._start()
                except _Lost as error:
                    raise WorkerLostError(f"the process that renders chat templates {error}; try again") from None
        assert self._names is not None
        return self._names

    def fields(self) -> frozenset[str]:
        """Names that the template may look up in objects, such as messages. Raises as `names` does."""
        self.names()
        return self._fields

    def render(self, variables: Mapping[str, Any], now: datetime) -> str:
        """The rendered text.

        Raises ParameterError where the template refuses or exceeds its limits, WorkerLostError where its process stalls
        or is killed.
        """
        job = {"variables": variables, "now": now.isoformat(), "max_chars": self._limits.max_chars}
        with self._lock:
            try:
                self._start()
                answer = self._ask({**job, "cpu_seconds": self._limits.cpu_seconds})
            except _Exceeded as error:
                raise ParameterError("messages", f"the chat template {error}") from None
            except _Lost as error:
                raise WorkerLostError(f"the process that renders chat templates {error}; try again") from None
        if "error" in answer:
            raise ParameterError("messages", f"the chat template does not take them: {answer['error']}")
        return answer["text"]

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            self._kill()

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._kill()
        try:
            # A session of its own keeps the terminal's Ctrl-C away from it; it ends when its input does.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise _Lost(f"cannot be started: {error.strerror}") from None
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)  # who does not read must not keep us beyond the limit
        first = {"template": self._template, "memory_bytes": self._limits.memory_bytes}
        try:
            answer = self._ask({**first, "cpu_seconds": self._limits.cpu_seconds})
        except _Exceeded as error:
            raise ModelError(f"the chat template {error} while it was compiled") from None
        if "error" in answer:
            self._kill()
            raise ModelError(f"the chat template is not valid: {answer['error']}")
        self._names, self._fields = frozenset(answer["names"]), frozenset(answer["fields"])

    def _ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        body = json.dumps(job).encode()
        deadline = time.monotonic() + self._limits.wall_seconds
        try:
            self._write(process.stdin.fileno(), struct.pack(">I", len(body)) + body, deadline)
            size = struct.unpack(">I", self._read(process.stdout.fileno(), 4, deadline))[0]
            return json.loads(self._read(process.stdout.fileno(), size, deadline))
        except BrokenPipeError:
            ended = self._why_it_ended()
            self._kill()
            raise ended from None
        except (_Exceeded, _Lost):
            self._kill()
            raise

    def _write(self, descriptor: int, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            self._wait(descriptor, select.POLLOUT, deadline)
            rest = rest[os.write(descriptor, rest[: 1 << 20]) :]

    def _read(self, descriptor: int, size: int, deadline: float) -> bytes:
        chunks, missing = [], size
        while missing:
            self._wait(descriptor, select.POLLIN, deadline)
            chunk = os.read(descriptor, min(missing, 1 << 20))
            if not chunk:
                raise self._why_it_ended()
            chunks.append(chunk)
            missing -= len(chunk)
        return b"".join(chunks)

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        poll = select.poll()  # `select` knows no descriptors above 1023
        poll.register(descriptor, event)
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            # The kernel counts its processor time, and would have ended it: it did not run.
            raise _Lost(f"did not answer within {self._limits.wall_seconds:g} s, and is replaced")

    def _why_it_ended(self) -> Exception:
        assert self._process is not None
        status = self._process.wait()
        if status in (OUT_OF_MEMORY, -signal.SIGABRT):  # native code aborts where it gets no memory
            return _Exceeded(f"took more than {self._limits.memory_bytes // 2**20} MiB of memory")
        if status == -signal.SIGXCPU:
            return _Exceeded(f"took more than {self._limits.cpu_seconds:g} s of processor time")
        return _Lost(f"ended with status {status}, and is replaced")

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
