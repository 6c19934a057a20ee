"""A quantised matrix of a checkpoint, by its format. No jax."""

from typing import Literal

from jaxinfer.checkpoint.quantized.fp8 import fp8_parts
from jaxinfer.checkpoint.quantized.integers import awq_parts, gptq_parts, integer_parts
from jaxinfer.checkpoint.quantized.parts import Parts
from jaxinfer.checkpoint.sources import Source
from jaxinfer.quantization.formats import Awq, Fp8, Gptq, Integers, TensorFormat
from jaxinfer.quantization.scheme import Part

TensorPart = Literal["weight", "bias"] | Part
"""What of a module is read: its values, its bias, or the codes, scales or zeros of quantised values."""


def quantized_source(form: TensorFormat, module: str, shape: tuple[int, int], part: TensorPart) -> Source:
    """A part of a module's matrix [N, K], which is `shape`, or its values, float32."""
    assert part != "bias"
    parts = _parts(form, module, shape)
    return parts.values if part == "weight" else parts.source(part)


def _parts(form: TensorFormat, module: str, shape: tuple[int, int]) -> Parts:
    if isinstance(form, Fp8):
        return fp8_parts(form, module, shape)
    if isinstance(form, Integers):
        return integer_parts(form, module, shape)
    if isinstance(form, Awq):
        return awq_parts(form, module, shape)
    if isinstance(form, Gptq):
        return gptq_parts(form, module, shape)
    raise AssertionError(form)
