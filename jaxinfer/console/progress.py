"""Show the progress of an engine's start on standard error."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from jaxinfer.console.messages import show

_QUIET_SECONDS = 10.0


def build_progress() -> "BuildBars | BuildLines":
    """Bars on a terminal, lines elsewhere."""
    return BuildBars() if sys.stderr.isatty() else BuildLines()


class BuildLines:
    """A line a stage, and one now and then in a long one, for logs. A context manager."""

    def __init__(self) -> None:
        self._stages: set[str] = set()
        self._cached = 0
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._tell("ready")

    def loaded(self, done: int, total: int) -> None:
        """Bytes of weights on the device so far, and in all."""
        self._tell(f"loading weights: {_mebibytes(total)} MiB")

    def sized(self, sizes: str) -> None:
        """Show the sizes that were chosen for the engine."""
        self._tell(sizes)

    def compiled(self, program: str, done: int, total: int, seconds: float, cached: bool) -> None:
        """A program was compiled, or read from the cache."""
        self._tell(f"preparing {total} programs")
        self._cached += cached
        if done == total:
            told = f"{self._cached} of {total} programs came from the cache"
            self._tell(told if self._cached else f"{total} programs were compiled")
        elif time.monotonic() - self._last > _QUIET_SECONDS:
            self._tell(f"{done} of {total} programs")

    def _tell(self, stage: str) -> None:
        if stage not in self._stages:
            self._stages.add(stage)
            self._last = time.monotonic()
            show(stage, sys.stderr)


class BuildBars:
    """Bars: weights in MiB, and programs. A context manager."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._weights: TaskID | None = None
        self._programs: TaskID | None = None
        self._cached = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def loaded(self, done: int, total: int) -> None:
        """Bytes of weights on the device so far, and in all."""
        if self._weights is None:
            self._weights = self._progress.add_task("loading weights (MiB)")
        self._progress.update(self._weights, completed=_mebibytes(done), total=_mebibytes(total))

    def sized(self, sizes: str) -> None:
        """Show the sizes that were chosen for the engine."""
        self._progress.console.print(sizes, highlight=False, soft_wrap=True)

    def compiled(self, program: str, done: int, total: int, seconds: float, cached: bool) -> None:
        """A program was compiled, or read from the cache."""
        if self._programs is None:
            self._programs = self._progress.add_task("programs")
        self._cached += cached
        text = f"programs ({self._cached} cached)"
        self._progress.update(self._programs, completed=done, total=total, description=text)


def _mebibytes(size: int) -> int:
    return -(-size // 2**20)
