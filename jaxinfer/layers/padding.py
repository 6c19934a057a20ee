"""Rows of padding, which native products of a CPU leave out where they are zero."""

import jax
import jax.numpy as jnp


def without_padding(x: jax.Array, real: jax.Array | None) -> jax.Array:
    """x [T, ...] on a CPU with zeros where it is padding, as `real` [T] bool says: native products leave out rows of
    zeros at the end. None: all rows are real."""
    if real is None:
        return x
    return jax.lax.platform_dependent(
        x,
        real,
        cpu=lambda x, real: jnp.where(real.reshape(-1, *[1] * (x.ndim - 1)), x, 0),
        default=lambda x, real: x,
    )
