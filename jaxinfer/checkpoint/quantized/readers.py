"""A quantised matrix of a checkpoint, by its format. No jax."""

from collections.abc import Callable
from typing import Any, Literal

from jaxinfer.checkpoint.quantized.e2m1 import mxfp4_parts, nvfp4_parts
from jaxinfer.checkpoint.quantized.fp8 import fp8_parts
from jaxinfer.checkpoint.quantized.integers import awq_parts, gptq_parts, integer_parts
from jaxinfer.checkpoint.quantized.parts import Parts
from jaxinfer.checkpoint.sources import Shape, Source
from jaxinfer.quantization.formats import Awq, Fp8, Gptq, Integers, Mxfp4, Nvfp4, TensorFormat
from jaxinfer.quantization.scheme import Part

TensorPart = Literal["weight", "bias"] | Part
"""Part of a module that is read: its values, its bias, or a part of quantised values."""

_READERS: dict[type, Callable[[Any, str, Any], Parts]] = {
    Fp8: fp8_parts,
    Integers: integer_parts,
    Awq: awq_parts,
    Gptq: gptq_parts,
    Mxfp4: mxfp4_parts,
    Nvfp4: nvfp4_parts,
}


def quantized_source(form: TensorFormat, module: str, shape: Shape, part: TensorPart) -> Source:
    """A part of a module's matrix [N, K], which is `shape`, but its order, or its values, float32; Mxfp4: or of experts
    [E, N, K]."""
    assert part not in ("bias", "order")
    parts = _READERS[type(form)](form, module, shape)
    return parts.values if part == "weight" else parts.source(part)
