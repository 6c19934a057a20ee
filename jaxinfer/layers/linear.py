"""Matrix products with an optional bias."""

import jax
import jax.numpy as jnp

from jaxinfer.layers.param import precision


def project(equation: str, x: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """einsum of x and weight, summed in float32 and returned in x's type, plus a bias that fits its last axes."""
    out = jnp.einsum(equation, x, weight, precision=precision(x.dtype), preferred_element_type=jnp.float32)
    if bias is not None:
        out = out + bias.astype(jnp.float32)
    return out.astype(x.dtype)
