"""Scales as they lie in checkpoints: a number for a whole matrix, for rows, or for blocks. No jax."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jaxinfer.checkpoint.sources import FLOATS, Index, Lengthened, Read, Shape, Source, Tensor, TensorFault


@dataclass(frozen=True)
class _Scales:
    """Read from one tensor, of its shape."""

    tensor: Tensor

    @property
    def shape(self) -> Shape:
        return self.tensor.shape

    @property
    def tensors(self) -> Iterator[Tensor]:
        yield self.tensor


class GroupScales(_Scales):
    """A tensor of scales. Raises TensorFault where one is not a finite number, or where all are 0.

    Some may be 0, as for groups of zeros, and some below 0, where a group's largest value has the lowest code.
    """

    def read(self, index: Index, read: Read) -> np.ndarray:
        scales = finite(self.tensor.read(index, read), self.tensor.name)
        if scales.size and not scales.any():
            _not_all_zero(self.tensor.read((), read), self.tensor.name)
        return scales


class PositiveScale(_Scales):
    """[1] of a tensor that is one scale, of whatever axes of length 1. Raises TensorFault where it is not above 0."""

    def read(self, index: Index, read: Read) -> np.ndarray:
        scale = self.tensor.read((), read).astype(np.float32).reshape(1)
        return positive(scale, self.tensor.name)[index]


class OfRows(_Scales):
    """[N, 1] of a tensor with a number for each row, or one for all, of whatever axes of length 1."""

    def read(self, index: Index, read: Read) -> np.ndarray:
        return np.broadcast_to(self._numbers(read).reshape(-1, 1), self.shape)[index]

    def _numbers(self, read: Read) -> np.ndarray:
        return self.tensor.read((), read)


class RowScales(OfRows):
    """Raises TensorFault as `GroupScales`, and where one for all is not above 0."""

    def _numbers(self, read: Read) -> np.ndarray:
        scales = finite(super()._numbers(read), self.tensor.name)
        if scales.size == 1:
            return positive(scales, self.tensor.name)
        return _not_all_zero(scales, self.tensor.name)


def row_scales(name: str, rows: int) -> RowScales:
    """The tensor `name` as scales [rows, 1]."""
    return RowScales(Tensor(name, (rows, 1), FLOATS, ((rows,), (), (1,), (1, 1))))


@dataclass(frozen=True)
class Spread(Lengthened):
    """Element i of the axis is the source's element i // times."""

    times: int

    def read(self, index: Index, read: Read) -> np.ndarray:
        first, last, _ = index[self.axis].indices(self.length)
        begin, end = first // self.times, -(-last // self.times)
        held = self.source.read((*index[: self.axis], slice(begin, end), *index[self.axis + 1 :]), read)
        wide = np.repeat(held, self.times, axis=self.axis)
        cut = slice(first - begin * self.times, last - begin * self.times)
        return wide[(slice(None),) * self.axis + (cut,)]


def spread(source: Source, axis: int, times: int, length: int) -> Source:
    """The source itself where its axis is as long already."""
    return source if times == 1 and source.shape[axis] == length else Spread(source, axis, length, times)


def finite(scales: np.ndarray, name: str) -> np.ndarray:
    """Raises TensorFault for a scale that is infinite or no number."""
    if not np.isfinite(scales.astype(np.float32)).all():
        raise TensorFault(name, "has a scale that is not a finite number")
    return scales


def positive(scale: np.ndarray, name: str) -> np.ndarray:
    """Raises TensorFault for the one scale of a whole tensor that is not a finite number above 0."""
    number = float(finite(scale, name).reshape(()))
    if not number > 0:
        raise TensorFault(name, f"is a scale of {number:g}; it must be above 0")
    return scale


def _not_all_zero(scales: np.ndarray, name: str) -> np.ndarray:
    """Raises TensorFault for the scales of a whole tensor where all are 0: so are its values then."""
    if not scales.any():
        raise TensorFault(name, "has no scale but 0")
    return scales
