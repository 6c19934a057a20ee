"""What the tests of both matmuls share: quantised weights, float64 oracles, and errors."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxinfer_kernels.matmul_blocks import MatmulBlocks

from .interpreter import tpu_interpreter

TOLERANCE = {jnp.float32: 1e-5, jnp.bfloat16: 1e-2}
RANGE = {jnp.int8: 127, jnp.int4: 7}


def run(
    function: Callable[..., jax.Array], *arrays: Any, named: dict[str, Any], blocks: MatmulBlocks | None, backend: str
) -> np.ndarray:
    """The result of one call, compiled, in float64; arrays in `named` go in by name, `blocks` to the TPU kernel."""
    sizes = blocks if backend == "mosaic_tpu" else None

    @jax.jit
    def call(arrays: tuple[Any, ...], named: dict[str, Any]) -> jax.Array:
        return function(*arrays, **named, backend=backend, block_sizes=sizes)

    if backend == "xla":
        return wide(call(arrays, named))
    with tpu_interpreter("eager"):
        return wide(call(arrays, named))


def normal(rng: np.random.Generator, *shape: int, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.asarray(rng.standard_normal(shape), dtype)


def integers(rng: np.random.Generator, *shape: int, dtype: Any) -> jax.Array:
    most = RANGE[dtype]
    return jnp.asarray(rng.integers(-most - 1, most + 1, shape)).astype(dtype)


def positive(rng: np.random.Generator, *shape: int, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.asarray(rng.uniform(0.01, 0.1, shape), dtype)


def wide(array: Any) -> np.ndarray:
    """Any array in float64; int4 has no cast of its own."""
    return np.asarray(jnp.asarray(array).astype(jnp.float32), np.float64)


def dequantised(weight: Any, scales: Any, zeros: Any = None) -> np.ndarray:
    """(weight - zeros) * scales, value by value, with no reshape: the oracle must not share the code's layout."""
    weight, scales = wide(weight), wide(scales)
    zeros = np.zeros_like(scales) if zeros is None else wide(zeros)
    if scales.ndim < weight.ndim:
        scales, zeros = scales[..., None], zeros[..., None]
    group = weight.shape[-1] // scales.shape[-1]
    index = np.arange(weight.shape[-1]) // group
    return (weight - zeros[..., index]) * scales[..., index]


def worst_error(result: np.ndarray, expected: np.ndarray) -> float:
    """The largest error, relative to the largest value of its row; NaN counts as infinite."""
    assert result.shape == expected.shape
    scale = np.maximum(np.abs(expected).max(axis=1, keepdims=True), 1e-30)
    return float(np.nan_to_num(np.abs(result - expected) / scale, nan=np.inf).max())
