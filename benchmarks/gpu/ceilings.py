"""What the device copies and multiplies at best: the yardstick of every other part."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu.context import Context

_CHAIN = 10


def measure(context: Context) -> None:
    """Bytes a second of a copy and of a read, and FLOPs a second of bf16 (on CPU float32) products of squares."""
    context.save(**_memory(context.form.copy_bytes))
    dtype = jnp.dtype(context.form.dtype)
    squares = [{"size": size, "tflops": _matmul(size, dtype)} for size in context.form.matmul_sizes]
    context.save(matmul=squares, matmul_tflops=max(row["tflops"] for row in squares), matmul_dtype=str(dtype))


def _memory(size: int) -> dict[str, float]:
    x = jnp.zeros(size // 4, jnp.float32)
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    read = jax.jit(jnp.sum)
    copied = _best_seconds(lambda x: add(x), x)
    x = jnp.zeros(size // 4, jnp.float32)
    return {"copy_gb_per_s": round(2 * size / copied / 1e9, 1), "read_gb_per_s": round(size / _read(read, x) / 1e9, 1)}


def _read(read: Callable[[jax.Array], jax.Array], x: jax.Array) -> float:
    def chain(x: jax.Array) -> jax.Array:
        read(x)
        return x

    jax.block_until_ready(read(x))
    return _best_seconds(chain, x, lambda x: jax.block_until_ready(read(x)), _CHAIN + 1)


def _matmul(size: int, dtype: jnp.dtype) -> float:
    keys = jax.random.split(jax.random.key(0))
    left = jax.random.normal(keys[0], (size, size), dtype)
    right = (jax.random.normal(keys[1], (size, size), dtype) * size**-0.5).astype(dtype)
    multiply = jax.jit(lambda x, y: jax.lax.dot(x, y, preferred_element_type=jnp.float32).astype(dtype))
    seconds = _best_seconds(lambda x: multiply(x, right), left)
    return round(2 * size**3 / seconds / 1e12, 3)


def _best_seconds(
    step: Callable[[Any], Any], x: Any, wait: Callable[[Any], Any] = jax.block_until_ready, calls: int = _CHAIN
) -> float:
    """Seconds of one call, each on the result of the one before; the best of five chains."""
    x = step(x)
    wait(x)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(_CHAIN):
            x = step(x)
        wait(x)
        seconds.append((time.perf_counter() - start) / calls)
    return min(seconds)
