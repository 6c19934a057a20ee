"""Token embedding, and its use as the head."""

import jax

from jaxinfer.layers.linear import product


def embed(table: jax.Array, tokens: jax.Array) -> jax.Array:
    """Rows of table [vocab, hidden] for tokens [T] int32."""
    return table[tokens]


def scores(table: jax.Array, hidden: jax.Array) -> jax.Array:
    """hidden [S, d] against table [vocab, d]: [S, vocab] float32."""
    return product(hidden, table)
