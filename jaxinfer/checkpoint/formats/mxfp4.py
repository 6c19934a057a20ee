"""`quant_method` mxfp4: gpt-oss' experts."""

from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from jaxinfer.checkpoint.formats.declared import Declared, Group
from jaxinfer.checkpoint.formats.format import TensorFormat
from jaxinfer.checkpoint.formats.parts.e2m1 import BYTES, e2m1
from jaxinfer.checkpoint.formats.parts.stored import Parts, held_group
from jaxinfer.checkpoint.formats.settings.lists import read_left_out
from jaxinfer.checkpoint.sources import Derived, Index, Read, Shape, Tensor, TensorFault
from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.quantization.scheme import Scheme

_GROUP = 32
_NO_NUMBER = 255
"""The e8m0 code that is no number."""


@dataclass(frozen=True)
class Mxfp4(TensorFormat):
    """e2m1, two in a byte, with an e8m0 scale for _GROUP.

    experts: those of gpt-oss, `_blocks` and `_scales`; otherwise compressed-tensors' `weight_packed` and
    `weight_scale`.
    """

    experts: bool

    def scheme(self, depth: int) -> Scheme:
        """Return the scheme that holds the checkpoint's codes as they are. Activations are not rounded."""
        return Scheme("e2m1", held_group(depth, _GROUP), scales="e8m0")

    def parts(self, module: str, shape: Shape) -> Parts:
        """shape: [N, K], or [E, N, K] of all experts."""
        *lead, depth = shape
        groups = -(-depth // _GROUP)
        if self.experts:
            blocks = Tensor(f"{module}_blocks", (*lead, groups, _GROUP // 2), BYTES)
            packed, scales = _Flat(blocks), Tensor(f"{module}_scales", (*lead, groups), BYTES)
        else:
            packed = Tensor(f"{module}.weight_packed", (*lead, -(-depth // 2)), BYTES)
            scales = Tensor(f"{module}.weight_scale", (*lead, groups), BYTES)
        return Parts(e2m1(packed, depth), _Powers(scales), _GROUP)

    @property
    def holds_all_experts(self) -> bool:
        return self.experts

    def __str__(self) -> str:
        return "MXFP4"


@dataclass(frozen=True)
class _Powers(Derived):
    """Bytes as the e8m0 scales that they are. Raises TensorFault for the one that is no number."""

    def read(self, index: Index, read: Read) -> np.ndarray:
        codes = self.source.read(index, read)
        if (codes == _NO_NUMBER).any():
            raise TensorFault(next(iter(self.tensors)).name, "has a scale that is not a finite number")
        return codes.view(ml_dtypes.float8_e8m0fnu)


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


def read(config: ConfigReader) -> Declared:
    """The tensors that hold all experts of a layer, and no others."""
    config.get("dequantize")  # how others load it
    form = Mxfp4(experts=True)
    return Declared("mxfp4", (Group(form, all=True),), read_left_out(config, "modules_to_not_convert"))
