"""Matrices in e2m1, two values in a byte: MXFP4 and NVFP4. No jax."""

from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from jaxinfer.checkpoint.quantized.packing import Unpacked
from jaxinfer.checkpoint.quantized.parts import Factored, Parts
from jaxinfer.checkpoint.quantized.scales import GroupScales, PositiveScale, finite
from jaxinfer.checkpoint.sources import FLOATS, Derived, Index, Read, Shape, Source, Tensor, TensorFault
from jaxinfer.quantization.formats import MXFP4_GROUP, NVFP4_GROUP, Mxfp4, Nvfp4

_BYTES = ("U8",)
_NO_NUMBER = 255
"""The e8m0 code that is no number."""


@dataclass(frozen=True)
class _Numbers(Derived):
    """Whole numbers below 16 as the e2m1 codes that they are."""

    def read(self, index: Index, read: Read) -> np.ndarray:
        return self.source.read(index, read).view(ml_dtypes.float4_e2m1fn)


@dataclass(frozen=True)
class _Powers(Derived):
    """Bytes as the e8m0 scales that they are. Raises TensorFault for the one that is no number."""

    def read(self, index: Index, read: Read) -> np.ndarray:
        codes = self.source.read(index, read)
        if (codes == _NO_NUMBER).any():
            raise TensorFault(next(iter(self.tensors)).name, "has a scale that is not a finite number")
        return codes.view(ml_dtypes.float8_e8m0fnu)


@dataclass(frozen=True)
class _Scaled(Derived):
    """Scales times that of the whole matrix, or divided by it, float32."""

    whole: PositiveScale
    divided: bool

    @property
    def tensors(self) -> Iterator[Tensor]:
        yield from self.source.tensors
        yield from self.whole.tensors

    def read(self, index: Index, read: Read) -> np.ndarray:
        scales, whole = self.source.read(index, read).astype(np.float32), self.whole.read((), read)
        return scales / whole if self.divided else scales * whole


@dataclass(frozen=True)
class _Factors:
    """The scale of a whole matrix, or one over it, for each row, [N, 1] float32."""

    whole: PositiveScale
    rows: int
    divided: bool

    @property
    def shape(self) -> Shape:
        return (self.rows, 1)

    @property
    def tensors(self) -> Iterator[Tensor]:
        yield from self.whole.tensors

    def read(self, index: Index, read: Read) -> np.ndarray:
        whole = self.whole.read((), read)
        with np.errstate(over="ignore"):
            factor = np.float32(1) / whole if self.divided else whole
        return np.broadcast_to(finite(factor, self.whole.tensor.name), self.shape)[index]


@dataclass(frozen=True)
class _Flat:
    """A tensor whose last two axes are made one."""

    tensor: Tensor

    @property
    def shape(self) -> Shape:
        return (*self.tensor.shape[:-2], self.tensor.shape[-2] * self.tensor.shape[-1])

    @property
    def tensors(self) -> Iterator[Tensor]:
        yield self.tensor

    def read(self, index: Index, read: Read) -> np.ndarray:
        inner = self.tensor.shape[-1]
        first, last, _ = index[-1].indices(self.shape[-1])
        begin, end = first // inner, -(-last // inner)
        found = self.tensor.read((*index[:-1], slice(begin, end)), read)
        flat = found.reshape(*found.shape[:-2], -1)
        return flat[..., first - begin * inner : last - begin * inner]


def _e2m1(packed: Source, depth: int) -> Source:
    """The first of two values in the low bits."""
    return _Numbers(Unpacked(packed, len(packed.shape) - 1, depth, 4, (0, 1)))


def mxfp4_parts(form: Mxfp4, module: str, shape: tuple[int, ...]) -> Parts:
    """shape: [N, K], or [E, N, K] of all experts."""
    *lead, depth = shape
    groups = -(-depth // MXFP4_GROUP)
    if form.experts:
        blocks = Tensor(f"{module}_blocks", (*lead, groups, MXFP4_GROUP // 2), _BYTES)
        packed, scales = _Flat(blocks), Tensor(f"{module}_scales", (*lead, groups), _BYTES)
    else:
        packed = Tensor(f"{module}.weight_packed", (*lead, -(-depth // 2)), _BYTES)
        scales = Tensor(f"{module}.weight_scale", (*lead, groups), _BYTES)
    return Parts(_e2m1(packed, depth), _Powers(scales), MXFP4_GROUP)


def nvfp4_parts(form: Nvfp4, module: str, shape: tuple[int, int]) -> Parts:
    """shape: [N, K]."""
    rows, depth = shape
    names = ("weight_packed", "weight_global_scale") if form.compressed else ("weight", "weight_scale_2")
    packed = Tensor(f"{module}.{names[0]}", (rows, -(-depth // 2)), _BYTES)
    scales = GroupScales(Tensor(f"{module}.weight_scale", (rows, -(-depth // NVFP4_GROUP)), ("F8_E4M3",)))
    whole = PositiveScale(Tensor(f"{module}.{names[1]}", (1,), FLOATS, ((), (1, 1))))
    factored = Factored(scales, _Factors(whole, rows, form.compressed))
    return Parts(_e2m1(packed, depth), _Scaled(scales, whole, form.compressed), NVFP4_GROUP, factored=factored)
