"""Writers of MXFP4 and NVFP4: tensors by their names, and the values [N, K] float32 that they mean."""

from typing import Any

import ml_dtypes
import numpy as np

from tests.quantization.writers.fp8 import Written


def _numbers(codes: np.ndarray) -> np.ndarray:
    return codes.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)


def _pairs(codes: np.ndarray) -> np.ndarray:
    """The first of two in the low bits."""
    return (codes[..., 0::2] + 16 * codes[..., 1::2]).astype(np.uint8)


def mxfp4(rng: np.random.Generator, module: str, rows: int, depth: int) -> Written:
    """compressed-tensors'."""
    tensors, values = _mx(rng, (rows, depth))
    packed = tensors["blocks"].reshape(rows, depth // 2)
    return {f"{module}.weight_packed": packed, f"{module}.weight_scale": tensors["scales"]}, values


def gpt_oss(rng: np.random.Generator, name: str, shape: tuple[int, int, int]) -> Written:
    """Of all experts [E, N, K]."""
    tensors, values = _mx(rng, shape)
    return {f"{name}_{kind}": tensor for kind, tensor in tensors.items()}, values


def _mx(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[dict[str, Any], np.ndarray]:
    *lead, depth = shape
    codes = rng.integers(0, 16, (*lead, depth // 32, 32))
    scales = rng.integers(120, 126, (*lead, depth // 32)).astype(np.uint8)
    values = _numbers(codes) * scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)[..., None]
    return {"blocks": _pairs(codes), "scales": scales}, values.reshape(shape)


def nvfp4(rng: np.random.Generator, module: str, rows: int, depth: int, *, compressed: bool) -> Written:
    """compressed-tensors', whose scales are divided by that of the matrix, or modelopt's, in which they are multiplied
    by it."""
    codes = rng.integers(0, 16, (rows, depth // 16, 16))
    scales = rng.uniform(50, 400, (rows, depth // 16)).astype(ml_dtypes.float8_e4m3fn)
    whole = np.float32(rng.uniform(1000, 2000) if compressed else rng.uniform(1, 2) / 2000)
    factors = scales.astype(np.float32) / whole if compressed else scales.astype(np.float32) * whole
    values = (_numbers(codes) * factors[..., None]).reshape(rows, depth)
    names = ("weight_packed", "weight_global_scale") if compressed else ("weight", "weight_scale_2")
    tensors = {names[0]: _pairs(codes).reshape(rows, depth // 2), "weight_scale": scales}
    tensors[names[1]] = whole.reshape(1) if compressed else whole
    tensors["input_global_scale" if compressed else "input_scale"] = np.float32(1).reshape(1)
    return {f"{module}.{name}": tensor for name, tensor in tensors.items()}, values
