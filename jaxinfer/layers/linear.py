"""Matrix products with an optional bias."""

import math

import jax
import jax.numpy as jnp

from jaxinfer.layers.param import precision

# NOTE: the product is always of two matrices. XLA on CPU writes out a transposed copy of a weight with more axes in
# every step (ten times slower, measured); flattening one costs nothing, since axes that are merged lie in order, and
# of merged axes only the first is ever sharded.


def project(x: jax.Array, weight: jax.Array, inner: int, bias: jax.Array | None = None) -> jax.Array:
    """x [T, *in] times weight [*out, *in], whose last `inner` axes are summed over: [T, *out] in x's type.

    The sum is in float32; bias [*out] is added to it.
    """
    split = weight.ndim - inner
    columns = math.prod(weight.shape[split:])
    out = jax.lax.dot_general(
        x.reshape(x.shape[0], columns),
        weight.reshape(-1, columns),
        (((1,), (1,)), ((), ())),
        precision=precision(x.dtype),
        preferred_element_type=jnp.float32,
    )
    out = out.reshape(x.shape[0], *weight.shape[:split])
    if bias is not None:
        out = out + bias.astype(jnp.float32)
    return out.astype(x.dtype)
