"""Columns of a matrix that are in groups by a tensor, and sorted by group. No jax."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jaxinfer.checkpoint.sources import Index, Read, Shape, Source, Tensor, TensorFault

_UNSET = -1
"""The number of every column in a tensor of compressed-tensors whose columns are in groups as they lie."""


@dataclass(frozen=True)
class GroupNumbers:
    """Group number of each column, [K]. group: columns of each group; the last may have fewer. unset: the tensor may be
    all -1; columns are then grouped in order. Raises TensorFault for a number that does not exist."""

    tensor: Tensor
    group: int
    unset: bool = False

    @property
    def shape(self) -> Shape:
        return self.tensor.shape

    @property
    def tensors(self) -> Iterator[Tensor]:
        yield self.tensor

    @property
    def as_they_lie(self) -> np.ndarray:
        """The numbers of columns that are in groups as they lie, [K]."""
        return np.arange(self.shape[0]) // self.group

    def read(self, index: Index, read: Read) -> np.ndarray:
        numbers, count = self.tensor.read(index, read), -(-self.shape[0] // self.group)
        if self._is_unset(numbers, read):
            return self.as_they_lie[index]
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < count:
            raise TensorFault(self.tensor.name, f"has a group that is not among the {count} that have scales")
        return numbers

    def _is_unset(self, numbers: np.ndarray, read: Read) -> bool:
        """Return whether no column has a number. numbers: of some of the columns."""
        if not self.unset or not (numbers == _UNSET).all():
            return False
        return bool((self.tensor.read((slice(None),), read) == _UNSET).all())


@dataclass(frozen=True)
class ColumnOrder:
    """The columns of each group after those of the groups before it, [K] int32; those of a group as they lie."""

    numbers: GroupNumbers

    @property
    def shape(self) -> Shape:
        return self.numbers.shape

    @property
    def tensors(self) -> Iterator[Tensor]:
        yield from self.numbers.tensors

    def read(self, index: Index, read: Read) -> np.ndarray:
        numbers = self.numbers.read((slice(None),), read)
        return np.argsort(numbers, kind="stable").astype(np.int32)[index]


@dataclass(frozen=True)
class SortedColumns:
    """Codes [N, K], their columns in an order; reads whole rows."""

    codes: Source
    order: ColumnOrder

    @property
    def shape(self) -> Shape:
        return self.codes.shape

    @property
    def tensors(self) -> Iterator[Tensor]:
        yield from self.codes.tensors
        yield from self.order.tensors

    def read(self, index: Index, read: Read) -> np.ndarray:
        rows, columns = index
        return self.codes.read((rows, slice(None)), read)[:, self.order.read((columns,), read)]
