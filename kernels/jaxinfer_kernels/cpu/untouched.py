"""Arrays that nobody has written to yet."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxinfer_kernels.cpu.loading import library


def untouched(shape: Sequence[int], dtype: jnp.dtype) -> jax.Array:
    """Return an array of any values. A large one takes no memory but for what is written to it."""
    if reason := library().reason:
        raise ValueError(reason)
    # Without an effect of its own XLA would take one array for two of a shape.
    return jax.ffi.ffi_call("jaxinfer_untouched", jax.ShapeDtypeStruct(shape, dtype), has_side_effect=True)()
