"""Check the results of everything that is timed against expected ones, in memory that held NaN."""

from typing import Any

import jax
import jax.numpy as jnp

_TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 2e-2}


def poison(shape: tuple[int, ...], dtype: Any) -> None:
    """NaN lies where a result of this size is put next, as far as the allocator gives back what was freed last: what is
    not written is then seen."""
    jax.block_until_ready(jnp.full(shape, jnp.nan, dtype)).delete()


def check_close(what: str, backend: str, result: jax.Array, expected: jax.Array) -> None:
    """Raises ValueError where a value is off, or NaN. result, expected: [rows, ...]; an error counts against the
    largest value of its row."""
    error = float(_worst_error(result, expected))
    if not error < _TOLERANCE[result.dtype.name]:
        raise ValueError(f"the {what} of {backend} are wrong: an error of {error:.3g} of the largest in its row")


@jax.jit
def _worst_error(result: jax.Array, expected: jax.Array) -> jax.Array:
    left, right = (each.reshape(each.shape[0], -1).astype(jnp.float32) for each in (result, expected))
    return (jnp.abs(left - right) / jnp.abs(right).max(axis=1, keepdims=True)).max()
