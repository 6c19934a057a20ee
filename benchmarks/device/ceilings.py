"""Measure the best rates at which the device copies and multiplies: the yardstick of every other part."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.device.context import Context

_CHAIN = 10


def measure(context: Context) -> None:
    """Bytes a second of a copy and of a read, and FLOPs a second of bf16 (on CPU float32) products of squares."""
    context.save(**memory_rates(context.form.copy_bytes))
    dtype = jnp.dtype(context.form.dtype)
    squares = [{"size": size, "tflops": matmul_tflops(size, dtype)} for size in context.form.matmul_sizes]
    context.save(matmul=squares, matmul_tflops=max(row["tflops"] for row in squares), matmul_dtype=str(dtype))


def memory_rates(size: int) -> dict[str, float]:
    """Measure a copy and a read, in 10^9 bytes a second; a copy reads and writes `size` bytes."""
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    copied = _best_seconds(add, jnp.zeros(size // 4, jnp.float32))
    x = jnp.zeros(size // 4, jnp.float32)
    add_all = jax.jit(lambda total, x: total + jnp.sum(x))
    read = _best_seconds(lambda total: add_all(total, x), jnp.float32(0))
    return {"copy_gb_per_s": round(2 * size / copied / 1e9, 1), "read_gb_per_s": round(size / read / 1e9, 1)}


def matmul_tflops(size: int, dtype: jnp.dtype) -> float:
    """10^12 FLOPs a second of products of squares of `size` rows."""
    keys = jax.random.split(jax.random.key(0))
    left = jax.random.normal(keys[0], (size, size), dtype)
    right = (jax.random.normal(keys[1], (size, size), dtype) * size**-0.5).astype(dtype)
    multiply = jax.jit(jnp.matmul)
    seconds = _best_seconds(lambda x: multiply(x, right), left)
    return round(2 * size**3 / seconds / 1e12, 3)


def _best_seconds(step: Callable[[Any], Any], x: Any) -> float:
    """Seconds of one call, each on the result of the one before, so that the last waits for all; the best of five."""
    x = jax.block_until_ready(step(x))
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(_CHAIN):
            x = step(x)
        jax.block_until_ready(x)
        seconds.append((time.perf_counter() - start) / _CHAIN)
    return min(seconds)
