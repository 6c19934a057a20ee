"""Sources of a weight's values: tensors of a checkpoint, split, cut, sorted, transposed, joined and stacked.

A Source knows its shape and the tensors that it reads, and reads any part of itself from just the parts of the tensors
that hold it. No jax.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

Index = tuple[slice, ...]
"""A slice of step 1 for each axis."""

Read = Callable[[str, Index], np.ndarray]
"""read(tensor name, slices of its axes) -> that part of the tensor."""

Shape = tuple[int, ...]

FLOATS = ("F32", "F16", "BF16")
"""Types of safetensors files that plain weights may have."""


class TensorFault(ValueError):
    """A tensor holds values that cannot be used; `tensor` is its name."""

    def __init__(self, tensor: str, message: str):
        super().__init__(message)
        self.tensor = tensor


class Source(Protocol):
    """Values that can be read in parts."""

    @property
    def shape(self) -> Shape:
        """The shape of all of it."""
        ...

    @property
    def tensors(self) -> Iterator["Tensor"]:
        """The tensors that it reads."""
        ...

    def read(self, index: Index, read: Read) -> np.ndarray:
        """The part `index`. Raises TensorFault."""
        ...


class Reader(Protocol):
    """Reads sources from the tensors of one folder."""

    def read_source(self, source: Source, index: Index) -> np.ndarray:
        """The part `index` of a source. Raises ModelError."""
        ...


class Tensor(NamedTuple):
    """One tensor of a checkpoint, of the shape that it has in the file.

    dtypes: those that it may have there. others: shapes that it may have there instead, whose parts nobody reads.
    """

    name: str
    shape: Shape
    dtypes: tuple[str, ...] = FLOATS
    others: tuple[Shape, ...] = ()

    @property
    def tensors(self) -> Iterator["Tensor"]:
        yield self

    def read(self, index: Index, read: Read) -> np.ndarray:
        return read(self.name, index)


@dataclass(frozen=True)
class Filled:
    """One value everywhere, of no tensor."""

    shape: Shape
    value: float

    @property
    def tensors(self) -> Iterator[Tensor]:
        yield from ()

    def read(self, index: Index, read: Read) -> np.ndarray:
        return np.full(self.shape, self.value, np.float32)[index]


@dataclass(frozen=True)
class Numbers:
    """Rows of numbers, of no tensor."""

    rows: tuple[tuple[int, ...], ...]

    @property
    def shape(self) -> Shape:
        return len(self.rows), len(self.rows[0])

    @property
    def tensors(self) -> Iterator[Tensor]:
        yield from ()

    def read(self, index: Index, read: Read) -> np.ndarray:
        return np.array(self.rows)[index]


@dataclass(frozen=True)
class Derived:
    """A source made of one other, of its shape where nothing else is said."""

    source: Source

    @property
    def shape(self) -> Shape:
        return self.source.shape

    @property
    def tensors(self) -> Iterator[Tensor]:
        yield from self.source.tensors


@dataclass(frozen=True)
class Lengthened(Derived):
    """One axis made `length` long."""

    axis: int
    length: int

    @property
    def shape(self) -> Shape:
        shape = self.source.shape
        return (*shape[: self.axis], self.length, *shape[self.axis + 1 :])


@dataclass(frozen=True)
class Split(Derived):
    """Each axis split into the axes that `view` has in its place."""

    view: tuple[Shape, ...]

    @property
    def shape(self) -> Shape:
        return tuple(length for dims in self.view for length in dims)

    def read(self, index: Index, read: Read) -> np.ndarray:
        """Reads the smallest run of each axis that holds the part, then cuts the part out of it."""
        bounds, inner, shape, at = [], [], [], 0
        for dims in self.view:
            run, dims_read, rest = _cover(dims, index[at : at + len(dims)])
            bounds.append(run)
            shape += dims_read
            inner += rest
            at += len(dims)
        return self.source.read(tuple(bounds), read).reshape(shape)[tuple(inner)]


@dataclass(frozen=True)
class Cut(Derived):
    """One axis from `start` to `stop`."""

    axis: int
    start: int
    stop: int

    @property
    def shape(self) -> Shape:
        shape = self.source.shape
        return (*shape[: self.axis], self.stop - self.start, *shape[self.axis + 1 :])

    def read(self, index: Index, read: Read) -> np.ndarray:
        first, last, _ = index[self.axis].indices(self.stop - self.start)
        part = slice(self.start + first, self.start + last)
        return self.source.read((*index[: self.axis], part, *index[self.axis + 1 :]), read)


@dataclass(frozen=True)
class Turned(Derived):
    """The axes in another order."""

    axes: tuple[int, ...]

    @property
    def shape(self) -> Shape:
        return tuple(self.source.shape[axis] for axis in self.axes)

    def read(self, index: Index, read: Read) -> np.ndarray:
        inner = [slice(None)] * len(index)
        for axis, part in zip(self.axes, index, strict=True):
            inner[axis] = part
        return self.source.read(tuple(inner), read).transpose(self.axes)


@dataclass(frozen=True)
class Sorted(Derived):
    """One axis in another order: element i is the source's element order[i]."""

    axis: int
    order: tuple[int, ...]

    @property
    def shape(self) -> Shape:
        return self.source.shape

    def read(self, index: Index, read: Read) -> np.ndarray:
        whole = (*index[: self.axis], slice(None), *index[self.axis + 1 :])
        return self.source.read(whole, read).take(self.order[index[self.axis]], axis=self.axis)


@dataclass(frozen=True)
class Placed(Derived):
    """One axis of elements in other places: element i is the source's element order[i], or `fill` where that is
    None."""

    axis: int
    order: tuple[int | None, ...]
    fill: float = 0.0

    @property
    def shape(self) -> Shape:
        shape = self.source.shape
        return (*shape[: self.axis], len(self.order), *shape[self.axis + 1 :])

    def read(self, index: Index, read: Read) -> np.ndarray:
        order = self.order[index[self.axis]]
        real = [i for i in order if i is not None]
        first, last = (min(real), max(real) + 1) if real else (0, 1)
        held = self.source.read((*index[: self.axis], slice(first, last), *index[self.axis + 1 :]), read)
        shape = (*held.shape[: self.axis], len(order), *held.shape[self.axis + 1 :])
        out = _filled(shape, self.fill, held.dtype)
        before = (slice(None),) * self.axis
        out[(*before, [i is not None for i in order])] = held.take([i - first for i in real], axis=self.axis)
        return out


@dataclass(frozen=True)
class Padded(Lengthened):
    """`fill` behind the last element of an axis."""

    fill: float = 0.0

    def read(self, index: Index, read: Read) -> np.ndarray:
        first, last, _ = index[self.axis].indices(self.length)
        end = self.source.shape[self.axis]
        inner = slice(min(first, end), min(last, end))
        held = self.source.read((*index[: self.axis], inner, *index[self.axis + 1 :]), read)
        missing = last - first - held.shape[self.axis]
        rest = _filled((*held.shape[: self.axis], missing, *held.shape[self.axis + 1 :]), self.fill, held.dtype)
        return np.concatenate([held, rest], self.axis)


@dataclass(frozen=True)
class Joined:
    """Sources joined along an axis."""

    sources: tuple[Source, ...]
    axis: int = 0

    @property
    def shape(self) -> Shape:
        first = self.sources[0].shape
        joined = sum(source.shape[self.axis] for source in self.sources)
        return (*first[: self.axis], joined, *first[self.axis + 1 :])

    @property
    def tensors(self) -> Iterator[Tensor]:
        for source in self.sources:
            yield from source.tensors

    def read(self, index: Index, read: Read) -> np.ndarray:
        parts, start = [], 0
        first, last, _ = index[self.axis].indices(self.shape[self.axis])
        for source in self.sources:
            length = source.shape[self.axis]
            inner = slice(max(first - start, 0), min(last - start, length))
            if inner.start < inner.stop:
                parts.append(source.read((*index[: self.axis], inner, *index[self.axis + 1 :]), read))
            start += length
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=self.axis)


@dataclass(frozen=True)
class Stacked:
    """Sources of one shape along a new first axis."""

    sources: Sequence[Source]

    @property
    def shape(self) -> Shape:
        return (len(self.sources), *self.sources[0].shape)

    @property
    def tensors(self) -> Iterator[Tensor]:
        for source in self.sources:
            yield from source.tensors

    def read(self, index: Index, read: Read) -> np.ndarray:
        return np.stack([source.read(index[1:], read) for source in self.sources[index[0]]])


@dataclass(frozen=True)
class Merged(Derived):
    """`count` axes from `axis` on made one."""

    axis: int
    count: int

    @property
    def shape(self) -> Shape:
        shape, end = self.source.shape, self.axis + self.count
        return (*shape[: self.axis], math.prod(shape[self.axis : end]), *shape[end:])

    def read(self, index: Index, read: Read) -> np.ndarray:
        """Reads whole elements of the first of those axes, then cuts the part out of them."""
        lengths = self.source.shape[self.axis : self.axis + self.count]
        inner = math.prod(lengths[1:])
        first, last, _ = index[self.axis].indices(lengths[0] * inner)
        begin, end = first // inner, -(-last // inner)
        before, after = index[: self.axis], index[self.axis + 1 :]
        others = (slice(None),) * (self.count - 1)
        held = self.source.read((*before, slice(begin, end), *others, *after), read)
        flat = held.reshape(*held.shape[: self.axis], -1, *held.shape[self.axis + self.count :])
        return flat[(slice(None),) * self.axis + (slice(first - begin * inner, last - begin * inner),)]


@dataclass(frozen=True)
class Element(Derived):
    """One element of the first axis, without that axis."""

    number: int

    @property
    def shape(self) -> Shape:
        return self.source.shape[1:]

    def read(self, index: Index, read: Read) -> np.ndarray:
        return self.source.read((slice(self.number, self.number + 1), *index), read)[0]


def _filled(shape: Shape, fill: float, dtype: np.dtype) -> np.ndarray:
    """Zeros are those of bits: e8m0 has no zero."""
    return np.full(shape, fill, dtype) if fill else np.zeros(shape, dtype)


def _cover(dims: Shape, index: Index) -> tuple[slice, list[int], list[slice]]:
    """Return, for one axis split into `dims`, the run that covers `index`, its shape, and the slices still to take."""
    ranges = [slice(*one.indices(dim)[:2]) for one, dim in zip(index, dims, strict=True)]
    split = next((i for i, dim in enumerate(dims) if dim > 1), len(dims) - 1)
    stride = math.prod(dims[split + 1 :])
    run = ranges[split]
    shape = [1] * split + [run.stop - run.start, *dims[split + 1 :]]
    rest = [slice(0, size) for size in shape[: split + 1]] + ranges[split + 1 :]
    return slice(run.start * stride, run.stop * stride), shape, rest
