"""What the tests of both matmuls share: quantised weights, float64 oracles, and errors."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxinfer_kernels.gpu.matmul_blocks import GpuMatmulBlocks
from jaxinfer_kernels.matmul_blocks import MatmulBlocks
from jaxinfer_kernels.quantized_matmul import quantized_matmul

from .interpreter import tpu_interpreter

TOLERANCE = {jnp.float32: 1e-5, jnp.bfloat16: 1e-2}
"""By the type of activations. Results of codes with codes are float32."""
ROUNDED = (jnp.int8, jnp.float8_e4m3fn)
E4M3, E2M1, E8M0 = jnp.float8_e4m3fn, jnp.float4_e2m1fn, jnp.float8_e8m0fnu
RANGE = {jnp.int8: 127, jnp.int4: 7}
SIZES = {
    "ragged": [5, 0, 17, 1, 0, 20],
    "rows-of-no-group": [3, 0, 9, 4, 2, 0],
    "one-group": [0, 0, 0, 50, 0, 0],
    "on-tile-edges": [16, 16, 0, 0, 16, 2],
    "no-rows": [0, 0, 0, 0, 0, 0],
}
"""Rows of each group."""


def run(
    function: Callable[..., jax.Array],
    *arrays: Any,
    named: dict[str, Any],
    blocks: MatmulBlocks | GpuMatmulBlocks | None,
    backend: str,
) -> np.ndarray:
    """The result of one call, compiled, in float64; arrays in `named` go in by name, `blocks` to Pallas kernels."""
    sizes = None if backend == "xla" else blocks

    @jax.jit
    def call(arrays: tuple[Any, ...], named: dict[str, Any]) -> jax.Array:
        return function(*arrays, **named, backend=backend, block_sizes=sizes)

    if backend == "xla":
        return wide(call(arrays, named))
    with interpreter(backend):
        return wide(call(arrays, named))


def interpreter(backend: str) -> AbstractContextManager[Any]:
    """The one that runs the backend's kernels on a CPU."""
    if backend == "mosaic_tpu":
        return tpu_interpreter("eager")
    from .gpu_registers import register_interpreter  # needs jax 0.11

    return register_interpreter()


def activations(rng: np.random.Generator, *shape: int, dtype: Any) -> jax.Array:
    """Values of a floating type, or codes of one that activations are rounded to."""
    return normal(rng, *shape, dtype=dtype) if dtype in TOLERANCE else codes(rng, *shape, dtype=dtype)


def normal(rng: np.random.Generator, *shape: int, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.asarray(rng.standard_normal(shape), dtype)


def codes(rng: np.random.Generator, *shape: int, dtype: Any) -> jax.Array:
    """Any of a type's codes but NaN; of uint8, which holds two of four bits, the last axis is half as long."""
    if dtype == jnp.uint8:
        return jnp.asarray(rng.integers(0, 256, (*shape[:-1], shape[-1] // 2)), dtype)
    if dtype in _ALL:
        every = _ALL[dtype]()
        return every[rng.integers(0, len(every), shape)]
    most = RANGE[dtype]
    return jnp.asarray(rng.integers(-most - 1, most + 1, shape)).astype(dtype)


def all_e4m3() -> jax.Array:
    """Each value of e4m3 once, subnormal ones and both zeros too, [254]; the two codes of NaN are left out."""
    every = np.arange(256, dtype=np.uint8)
    return jax.lax.bitcast_convert_type(jnp.asarray(every[every & 0x7F != 0x7F]), E4M3)


def all_e2m1() -> jax.Array:
    """Each value of e2m1 once, both zeros too, [16]."""
    return jnp.asarray(np.arange(16, dtype=np.uint8).view(E2M1))


_ALL = {E4M3: all_e4m3, E2M1: all_e2m1}


def worst_code_error(blocks: MatmulBlocks | GpuMatmulBlocks, backend: str, dtype: Any = E4M3) -> float:
    """How far any code of a type, times a row of the unit matrix and a scale of 1, is from its value.

    A NaN among a channel's codes would hide all others.
    """
    columns, depth, every = 128, 256, _ALL[dtype]()
    weight = every[(np.arange(columns)[:, None] + np.arange(depth)) % len(every)]
    x, scales = jnp.eye(depth, dtype=jnp.bfloat16), jnp.ones(columns)
    result = run(quantized_matmul, x, weight, scales, named={}, blocks=blocks, backend=backend)
    return float(np.nan_to_num(np.abs(result - wide(weight).T), nan=np.inf).max())


def positive(rng: np.random.Generator, *shape: int, dtype: Any = jnp.float32) -> jax.Array:
    """Scales of a type; e8m0 has powers of two alone, of which a few of some orders are drawn."""
    if dtype == E8M0:
        return jnp.asarray(rng.integers(118, 124, shape).astype(np.uint8).view(E8M0))
    return jnp.asarray(rng.uniform(0.01, 0.1, shape), dtype)


def wide(array: Any) -> np.ndarray:
    """Any array in float64; int4 has no cast of its own."""
    return np.asarray(jnp.asarray(array).astype(jnp.float32), np.float64)


def four_bit_codes(packed: Any) -> np.ndarray:
    """Codes [..., K] of bytes [..., K // 2]: a block of 32 has its first half in the low bits of 16 bytes."""
    *lead, size = packed.shape
    blocks = np.asarray(packed, np.int64).reshape(*lead, -1, 16)
    found = np.concatenate([blocks % 16, blocks // 16], axis=-1).reshape(*lead, 2 * size)
    return np.where(found < 8, found, found - 16)


def dequantised(weight: Any, scales: Any, zeros: Any = None) -> np.ndarray:
    """(weight - zeros) * scales, value by value, with no reshape: the oracle must not share the code's layout."""
    weight = four_bit_codes(weight) if weight.dtype == jnp.uint8 else wide(weight)
    scales = wide(scales)
    zeros = np.zeros_like(scales) if zeros is None else wide(zeros)
    if scales.ndim < weight.ndim:
        scales, zeros = scales[..., None], zeros[..., None]
    group = weight.shape[-1] // scales.shape[-1]
    index = np.arange(weight.shape[-1]) // group
    return (weight - zeros[..., index]) * scales[..., index]


def grouped_case(
    sizes: list[int],
    rows: int,
    shape: tuple[int, int],
    dtype: Any,
    weight_type: Any,
    group: int | None,
    zeros: bool = False,
    scale_type: Any = jnp.float32,
) -> tuple[jax.Array, jax.Array, dict[str, jax.Array], np.ndarray]:
    """x, weights [experts, *shape], scales and zeros by name, and the result, row by row; rows of no group are 0.

    Rows of no group and weights of empty groups are NaN where their type has it, which must not leak.
    """
    (columns, depth), empty = shape, np.flatnonzero(np.array(sizes) == 0)
    rng = np.random.default_rng(rows + columns + depth)
    x = activations(rng, rows, depth, dtype=dtype)
    x = x.at[sum(sizes) :].set(jnp.asarray(127 if dtype == jnp.int8 else jnp.nan, dtype))
    named = {}
    if weight_type in TOLERANCE:
        weights = normal(rng, len(sizes), *shape, dtype=weight_type).at[empty].set(jnp.nan)
        exact = wide(weights)
    else:
        weights = codes(rng, len(sizes), *shape, dtype=weight_type)
        sides = [len(sizes), columns, *([] if group is None else [depth // group])]
        named["scales"] = positive(rng, *sides, dtype=scale_type).at[empty].set(jnp.nan)
        if zeros:
            named["zeros"] = (normal(rng, *sides) * 3).at[empty].set(jnp.nan)
        exact = dequantised(weights, **named)
    expected = np.zeros((rows, columns))
    for row, index in enumerate(np.repeat(np.arange(len(sizes)), sizes)):
        expected[row] = exact[index] @ wide(x[row])
    return x, weights, named, expected


def worst_error(result: np.ndarray, expected: np.ndarray) -> float:
    """The largest error, relative to the largest value of its row; NaN counts as infinite."""
    assert result.shape == expected.shape
    scale = np.maximum(np.abs(expected).max(axis=1, keepdims=True), 1e-30)
    return float(np.nan_to_num(np.abs(result - expected) / scale, nan=np.inf).max())
