"""Where the values of a weight come from: tensors of a checkpoint, reshaped, joined and stacked. No jax."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Index = tuple[slice, ...]

Read = Callable[[str, Index], np.ndarray]
"""read(tensor name, slices of its axes) -> that part of the tensor."""


class Tensor(NamedTuple):
    """One tensor of a checkpoint. view: for each of its axes the axes that it is split into."""

    name: str
    view: tuple[tuple[int, ...], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in the file."""
        return tuple(math.prod(dims) for dims in self.view)

    @property
    def viewed(self) -> tuple[int, ...]:
        """The shape after the split."""
        return tuple(dim for dims in self.view for dim in dims)


class Source(NamedTuple):
    """A weight, or one layer of a stacked one: tensors joined along `axis` of their views."""

    tensors: tuple[Tensor, ...]
    axis: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape after joining."""
        first = self.tensors[0].viewed
        joined = sum(tensor.viewed[self.axis] for tensor in self.tensors)
        return (*first[: self.axis], joined, *first[self.axis + 1 :])


def read_weight(sources: Sequence[Source], stacked: bool, index: Index, read: Read) -> np.ndarray:
    """The part `index` of a weight; a stacked one has a leading axis over `sources`, else there is one source."""
    if not stacked:
        return _read_source(sources[0], index, read)
    parts = [_read_source(source, index[1:], read) for source in sources[index[0]]]
    return np.stack(parts)


def _read_source(source: Source, index: Index, read: Read) -> np.ndarray:
    parts, start = [], 0
    first, last, _ = index[source.axis].indices(source.shape[source.axis])
    for tensor in source.tensors:
        length = tensor.viewed[source.axis]
        inner = slice(max(first - start, 0), min(last - start, length))
        if inner.start < inner.stop:
            parts.append(_read_tensor(tensor, (*index[: source.axis], inner, *index[source.axis + 1 :]), read))
        start += length
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=source.axis)


def _read_tensor(tensor: Tensor, index: Index, read: Read) -> np.ndarray:
    """Reads the smallest run of rows and columns that holds the part, then cuts the part out of it."""
    bounds, inner, shape, at = [], [], [], 0
    for dims in tensor.view:
        file_slice, dims_read, rest = _cover(dims, index[at : at + len(dims)])
        bounds.append(file_slice)
        shape += dims_read
        inner += rest
        at += len(dims)
    return read(tensor.name, tuple(bounds)).reshape(shape)[tuple(inner)]


def _cover(dims: tuple[int, ...], index: Index) -> tuple[slice, list[int], list[slice]]:
    """For one file axis split into `dims`: the run that covers `index`, its shape, and the slices still to take."""
    ranges = [slice(*one.indices(dim)[:2]) for one, dim in zip(index, dims, strict=True)]
    split = next((i for i, dim in enumerate(dims) if dim > 1), len(dims) - 1)
    stride = math.prod(dims[split + 1 :])
    run = ranges[split]
    shape = [1] * split + [run.stop - run.start, *dims[split + 1 :]]
    rest = [slice(0, size) for size in shape[: split + 1]] + ranges[split + 1 :]
    return slice(run.start * stride, run.stop * stride), shape, rest
