"""NVFP4, which modelopt and compressed-tensors write. Imports no jax."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jaxinfer.checkpoint.formats.format import TensorFormat
from jaxinfer.checkpoint.formats.parts.e2m1 import BYTES, e2m1
from jaxinfer.checkpoint.formats.parts.scales import GroupScales, PositiveScale, finite
from jaxinfer.checkpoint.formats.parts.stored import Factored, Parts, held_group
from jaxinfer.checkpoint.sources import FLOATS, Derived, Index, Read, Shape, Tensor
from jaxinfer.quantization.scheme import Scheme

_GROUP = 16


@dataclass(frozen=True)
class Nvfp4(TensorFormat):
    """e2m1, two in a byte, with an e4m3 scale for _GROUP and a float32 scale for all.

    compressed: compressed-tensors' `weight_packed`, divided by `weight_global_scale`; otherwise modelopt's `weight`,
    multiplied by `weight_scale_2`.
    """

    compressed: bool

    def scheme(self, depth: int) -> Scheme:
        """The scale for all is the factor of each row. Activations stay as they are."""
        return Scheme("e2m1", held_group(depth, _GROUP), scales="e4m3", factors=True)

    def parts(self, module: str, shape: Shape) -> Parts:
        rows, depth = shape
        names = ("weight_packed", "weight_global_scale") if self.compressed else ("weight", "weight_scale_2")
        packed = Tensor(f"{module}.{names[0]}", (rows, -(-depth // 2)), BYTES)
        scales = GroupScales(Tensor(f"{module}.weight_scale", (rows, -(-depth // _GROUP)), ("F8_E4M3",)))
        whole = PositiveScale(Tensor(f"{module}.{names[1]}", (1,), FLOATS, ((), (1, 1))))
        factored = Factored(scales, _Factors(whole, rows, self.compressed))
        return Parts(e2m1(packed, depth), _Scaled(scales, whole, self.compressed), _GROUP, factored=factored)

    def __str__(self) -> str:
        return "NVFP4"


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
