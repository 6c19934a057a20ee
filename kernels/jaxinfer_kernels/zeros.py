"""Zeros for a result that a kernel or a loop fills in, where XLA keeps no more of them than are needed at once."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

_BITS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def zeros_after(x: jax.Array, shape: Sequence[int], dtype: jnp.dtype) -> jax.Array:
    """Zeros that cannot be there before x, of which they follow without using it.

    Equal zeros of all layers would be one constant, and XLA for a GPU copies that for each layer before the first one
    runs: 13 GB in a step of 48 layers with experts, 1.2 GB for the attention of 80 (compiled for an H200). x: of a type
    of 8, 16 or 32 bits; not empty.
    """
    assert math.prod(x.shape) > 0
    bits = jax.lax.bitcast_convert_type(x.ravel()[0], _BITS[x.dtype.itemsize])
    zero = jnp.minimum((bits >> 1).astype(jnp.int32), 0)  # no compiler looks so far
    return jnp.full(shape, zero.astype(dtype))
