"""Matrices in e4m3. No jax."""

from jaxinfer.checkpoint.quantized.parts import Parts
from jaxinfer.checkpoint.quantized.scales import Finite, row_scales, spread
from jaxinfer.checkpoint.sources import FLOATS, Source, Tensor
from jaxinfer.quantization.formats import Fp8

_SCALES = (*FLOATS, "F8_E8M0")


def fp8_parts(form: Fp8, module: str, shape: tuple[int, int]) -> Parts:
    """Scales of blocks are for each row here, since each device holds some of the rows. shape: [N, K]."""
    rows, depth = shape
    codes = Tensor(f"{module}.weight", shape, ("F8_E4M3",))
    name = f"{module}.{form.scales}"
    if form.block is None:
        return Parts(codes, row_scales(name, rows), depth)
    down, across = form.block
    blocks: Source = Finite(Tensor(name, (-(-rows // down), -(-depth // across)), _SCALES))
    return Parts(codes, spread(blocks, 0, min(down, rows), rows), across)
