"""Progress bars of an engine under construction."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class BuildBars:
    """Bars on standard error: weights in MiB, and programs. A context manager."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._weights: TaskID | None = None
        self._programs: TaskID | None = None

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

    def compiled(self, program: str, done: int, total: int, seconds: float) -> None:
        """A program was compiled."""
        if self._programs is None:
            self._programs = self._progress.add_task("compiling programs")
        self._progress.update(self._programs, completed=done, total=total)


def _mebibytes(size: int) -> int:
    return -(-size // 2**20)
