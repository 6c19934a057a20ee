"""Matrices in e4m3. No jax."""

from dataclasses import dataclass

import numpy as np

from jaxinfer.checkpoint.quantized.parts import Parts
from jaxinfer.checkpoint.quantized.scales import GroupScales, row_scales, spread
from jaxinfer.checkpoint.sources import FLOATS, Derived, Index, Read, Source, Tensor, TensorFault
from jaxinfer.quantization.formats import Fp8

_SCALES = (*FLOATS, "F8_E8M0")
_WITHOUT_SIGN, _NO_NUMBER = 0x7F, 0x7F
_BYTES_AT_ONCE = 2**18  # fit a cache of a core


@dataclass(frozen=True)
class _Codes(Derived):
    """e4m3 codes. Raises TensorFault for one that is no number, which would make every answer NaN."""

    def read(self, index: Index, read: Read) -> np.ndarray:
        codes = self.source.read(index, read)
        flat = codes.reshape(-1).view(np.uint8)
        for start in range(0, flat.size, _BYTES_AT_ONCE):
            if (flat[start : start + _BYTES_AT_ONCE] & _WITHOUT_SIGN).max() == _NO_NUMBER:
                raise TensorFault(next(iter(self.tensors)).name, "has a value that is not a number")
        return codes


def fp8_parts(form: Fp8, module: str, shape: tuple[int, int]) -> Parts:
    """Scales of blocks are for each row here, since each device holds some of the rows. shape: [N, K]."""
    rows, depth = shape
    codes = _Codes(Tensor(f"{module}.weight", shape, ("F8_E4M3",)))
    name = f"{module}.{form.scales}"
    if form.block is None:
        return Parts(codes, row_scales(name, rows), depth)
    down, across = form.block
    blocks: Source = GroupScales(Tensor(name, (-(-rows // down), -(-depth // across)), _SCALES))
    return Parts(codes, spread(blocks, 0, min(down, rows), rows), across)
