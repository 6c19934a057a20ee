"""RecordingRunner: keeps what a runner was asked last, and writes it to a file where it fails, to be replayed."""

import logging
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from jaxinfer.engine.device.calls import Call, Reset, Sample, Start, decode, encode
from jaxinfer.engine.device.runner import Drafts, Runner
from jaxinfer.engine.device.wrapping import WrappingRunner
from jaxinfer.engine.step.plan import StepResult
from jaxinfer.version import __version__

log = logging.getLogger(__name__)

Asked = Literal["submit", "read_drafts", "collect"]
KEPT = 1000
"""Entries at most; of 256 rows that decode one has 4 KiB, with masks megabytes."""
_KEPT_BYTES = 64 << 20
_MOST_FILES = 20
"""Of one process: a device that has gone fails again and again."""


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """One thing that a runner was asked: the message of a call, or the index of a step for the others."""

    asked: Asked
    given: bytes | int


class Fault(msgspec.Struct, frozen=True):
    """The number of the entry that failed, from 0, and its error."""

    entry: int
    error: str


class Recording(msgspec.Struct, frozen=True):
    """Entries since the runner was ready or reset, the last of which failed. dropped: how many are missing in front:
    what was written before is then unknown, and another fault may come when they are replayed. shapes: the runner's."""

    version: str
    shapes: str
    dropped: int
    entries: list[Entry]
    fault: Fault


class RecordingRunner(WrappingRunner):
    """A Runner that keeps what it is asked, for about a microsecond a call, and performs it on `runner`. folder: where
    recordings are written, a file a fault."""

    def __init__(self, runner: Runner, folder: Path):
        super().__init__(runner)
        self._folder = folder
        self._entries: deque[Entry] = deque()
        self._bytes = self._dropped = self._written = 0

    def submit(self, call: Call) -> None:
        if isinstance(call, Reset):
            self._entries.clear()
            self._bytes = self._dropped = 0
            self._runner.submit(call)
            return
        with self._recorded("submit", encode(call)):
            self._runner.submit(call)

    def read_drafts(self, index: int) -> Drafts:
        with self._recorded("read_drafts", index):
            return self._runner.read_drafts(index)

    def collect(self, index: int) -> StepResult:
        with self._recorded("collect", index):
            return self._runner.collect(index)

    @contextmanager
    def _recorded(self, asked: Asked, given: bytes | int) -> Iterator[None]:
        self._keep(Entry(asked, given))
        try:
            yield
        except Exception as error:
            self._write(error)
            raise

    def _keep(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._bytes += _size(entry)
        while len(self._entries) > KEPT or self._bytes > _KEPT_BYTES:
            self._bytes -= _size(self._entries.popleft())
            self._dropped += 1

    def _write(self, error: Exception) -> None:
        """A fault stays the engine's, whether or not its recording can be written."""
        self._written += 1
        if self._written > _MOST_FILES:
            return
        entries = list(self._entries)
        fault = Fault(len(entries) - 1, _told(error))
        recording = Recording(__version__, repr(self.shapes), self._dropped, entries, fault)
        file = self._folder / f"fault-{time.time_ns()}-{os.getpid()}.calls"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
                opened.write(msgspec.msgpack.encode(recording))
        except OSError as reason:
            log.warning("the calls before a fault could not be written to %s: %s", file, reason)
        else:
            log.warning("%d calls up to a fault are in %s", len(entries), file)


def read_recording(file: Path) -> Recording:
    """Read a file of a RecordingRunner. Raises OSError, and ValueError where it holds something else."""
    return msgspec.msgpack.decode(file.read_bytes(), type=Recording)


def replay(runner: Runner, recording: Recording) -> Fault | None:
    """Ask a runner, which is new or was reset, for all of a recording. Returns the first fault; None if none comes.

    What is left of steps whose beginning was dropped is passed over.
    """
    begun = set[int]()
    for number, entry in enumerate(recording.entries):
        try:
            _ask(runner, entry, begun)
        except Exception as error:
            return Fault(number, _told(error))
    return None


def _ask(runner: Runner, entry: Entry, begun: set[int]) -> None:
    """begun: steps that were started since the recording begins, by index."""
    match entry:
        case Entry("submit", bytes(message)):
            call = decode(message)
            if isinstance(call, Start):
                begun.add(call.step.index)
            if not isinstance(call, Sample) or call.index in begun:
                runner.submit(call)
        case Entry("read_drafts", int(index)) if index in begun:
            runner.read_drafts(index)
        case Entry("collect", int(index)) if index in begun:
            runner.collect(index)


def _size(entry: Entry) -> int:
    return len(entry.given) if isinstance(entry.given, bytes) else 0


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
