"""Parameters as descriptions: shape, type, logical axes and scale, from which arrays are made later."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx


def param(
    shape: Sequence[int], axes: Sequence[str | None], dtype: jnp.dtype, std: float | None, offset: float = 0.0
) -> nnx.Param:
    """A parameter whose value is a ShapeDtypeStruct.

    axes: a logical name for each axis, see `jaxinfer.parallel.rules`. std: of random values; None: all 1 - offset.
    """
    if len(shape) != len(axes):
        raise ValueError(f"shape {tuple(shape)} and axes {tuple(axes)} differ in length")
    return nnx.Param(jax.ShapeDtypeStruct(tuple(shape), dtype), axes=tuple(axes), std=std, offset=offset)


def value(parameter: nnx.Param) -> jax.Array:
    """The array that a parameter holds."""
    return parameter[...]


def precision(dtype: jnp.dtype) -> jax.lax.Precision | None:
    """float32 means float32: GPUs and TPUs multiply it in a shorter type by default."""
    return jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None
