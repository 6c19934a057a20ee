"""Token embedding, and its use as the head."""

import jax
import jax.numpy as jnp

from jaxinfer.layers.param import precision


def embed(table: jax.Array, tokens: jax.Array) -> jax.Array:
    """Rows of table [vocab, hidden] for tokens [T] int32."""
    return table[tokens]


def scores(table: jax.Array, hidden: jax.Array) -> jax.Array:
    """hidden [S, d] against table [vocab, d]: [S, vocab] float32."""
    return jax.lax.dot_general(
        hidden,
        table,
        (((1,), (1,)), ((), ())),
        precision=precision(hidden.dtype),
        preferred_element_type=jnp.float32,
    )
