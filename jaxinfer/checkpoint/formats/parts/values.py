"""Values of codes, for weights that the device holds plain. No jax."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jaxinfer.checkpoint.formats.parts.groups import GroupNumbers
from jaxinfer.checkpoint.sources import Index, Read, Shape, Source, Tensor


@dataclass(frozen=True)
class Values:
    """(codes - zeros) * scales, float32, of codes [..., N, K].

    scales, zeros: [..., N, K / group], the last group may be shorter; zeros None: none are taken off. groups None:
    `group` columns in a row share one.
    """

    codes: Source
    scales: Source
    group: int
    zeros: Source | None = None
    groups: GroupNumbers | None = None

    @property
    def shape(self) -> Shape:
        return self.codes.shape

    @property
    def tensors(self) -> Iterator[Tensor]:
        for source in (self.codes, self.scales, self.zeros, self.groups):
            if source is not None:
                yield from source.tensors

    def read(self, index: Index, read: Read) -> np.ndarray:
        numbers = self._numbers(index[-1], read)
        low, high = (int(numbers.min()), int(numbers.max()) + 1) if len(numbers) else (0, 0)
        side = (*index[:-1], slice(low, high))
        values = self.codes.read(index, read).astype(np.float32)
        if self.zeros is not None:
            values -= self.zeros.read(side, read).astype(np.float32)[..., numbers - low]
        values *= self.scales.read(side, read).astype(np.float32)[..., numbers - low]
        return values

    def _numbers(self, columns: slice, read: Read) -> np.ndarray:
        """Return the group numbers of some columns."""
        first, last, _ = columns.indices(self.shape[-1])
        if self.groups is None:
            return np.arange(first, last) // self.group
        return self.groups.read((slice(first, last),), read)
