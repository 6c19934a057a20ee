"""Counts: running totals of one process, which others may read while it counts."""

import mmap
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

Values: TypeAlias = "memoryview[float]"
"""Of doubles; adding to one costs no more than adding to an entry of a list."""


def private_counts(size: int) -> Values:
    """`size` doubles, 0, that nobody else sees."""
    return memoryview(bytearray(8 * size)).cast("d")


def shared_counts(file: Path, size: int) -> Values:
    """`size` doubles in a file: 0, or what a process that is gone has left there. One process at a time writes them."""
    with file.open("a+b") as opened:
        opened.truncate(8 * size)
        return memoryview(mmap.mmap(opened.fileno(), 8 * size)).cast("d")


def read_counts(file: Path, size: int) -> np.ndarray:
    """What stands in a file of `shared_counts` now, float64 [size]; zeros where nobody has made it."""
    try:
        return np.frombuffer(file.read_bytes(), np.float64, size)
    except (FileNotFoundError, ValueError):
        return np.zeros(size)


class SharedFolder(NamedTuple):
    """Where the processes of one server count. index: of an API process, and of its successor once it has died."""

    path: Path
    index: int

    @property
    def own(self) -> Path:
        """The file of this process."""
        return self.path / f"requests-{self.index}"

    def total(self, size: int) -> np.ndarray:
        """The sum over all API processes, those that have died included."""
        return sum((read_counts(file, size) for file in self.path.glob("requests-*")), np.zeros(size))

    def restarts(self) -> "Restarts":
        """What the supervisor has counted."""
        return Restarts(*read_counts(self.path / RESTARTS_FILE, len(Restarts._fields)))


RESTARTS_FILE = "restarts"


class Restarts(NamedTuple):
    """How often processes that had died were started again."""

    engine: float = 0
    api: float = 0
