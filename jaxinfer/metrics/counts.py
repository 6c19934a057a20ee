"""Counts: running totals of one process, which others may read while it counts."""

import contextlib
import mmap
import os
import tempfile
from typing import NamedTuple, Self, TypeAlias

import numpy as np

from jaxinfer.errors import JaxinferError

Values: TypeAlias = "memoryview[float]"
"""View of doubles; adding to one costs no more than adding to an entry of a list."""


class Restarts(NamedTuple):
    """Restarts of processes that had died."""

    engine: float = 0
    api: float = 0


def private_counts(size: int) -> Values:
    """`size` doubles, 0, that nobody else sees."""
    return memoryview(bytearray(8 * size)).cast("d")


class SharedCounts:
    """Counts of a server's processes, in memory that all of them map: restarts, and a row for each API process.

    A process that dies loses nothing: its successor goes on in the same row. descriptor: of the memory, which children
    inherit. One process at a time writes a row, and the supervisor alone the restarts. size: doubles in a row. index:
    the row of this process.
    """

    def __init__(self, descriptor: int, rows: int, size: int, index: int = 0):
        self.descriptor = descriptor
        self._size = size
        self._index = index
        self._all = memoryview(mmap.mmap(descriptor, _bytes(rows, size))).cast("d")

    @classmethod
    def create(cls, rows: int, size: int) -> Self:
        """Counts at 0. Raises JaxinferError where there is no memory for them."""
        try:
            return cls(_allocate(_bytes(rows, size)), rows, size)
        except OSError as error:
            raise JaxinferError(f"cannot share counts between processes: {error.strerror}") from None

    @property
    def own(self) -> Values:
        """The row of this process."""
        first = len(Restarts._fields) + self._index * self._size
        return self._all[first : first + self._size]

    @property
    def restarts(self) -> Values:
        """Counts of `Restarts`, in the order of its fields."""
        return self._all[: len(Restarts._fields)]

    def total(self) -> np.ndarray:
        """The sum over all API processes, those that have died included; float64 [size]."""
        return np.array(self._all[len(Restarts._fields) :]).reshape(-1, self._size).sum(0)


def _bytes(rows: int, size: int) -> int:
    return 8 * (len(Restarts._fields) + rows * size)


def _allocate(size: int) -> int:
    """A descriptor of `size` bytes, 0.

    NOTE: every byte must have its place before it is mapped. Where a mapped byte has none and the disk is full, the
    kernel ends the process that writes it (SIGBUS). So it is memory and no file where the system has that, and is
    never a file with holes.
    """
    descriptor = _memory()
    if descriptor is not None:
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor
    with tempfile.TemporaryFile(buffering=0) as file:  # without a name; gone with its last process
        if file.write(bytes(size)) < size:
            raise OSError(0, "the temporary folder is full")
        os.fsync(file.fileno())
        return os.dup(file.fileno())


def _memory() -> int | None:
    """A file in memory, of no bytes yet; None where the system has none, or its policy (seccomp, sysctl) refuses it."""
    if not hasattr(os, "memfd_create"):
        return None
    with contextlib.suppress(OSError):
        return os.memfd_create("jaxinfer-counts")
    return None
