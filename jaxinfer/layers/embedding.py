"""Token embedding, and its use as the head."""

import jax
import jax.numpy as jnp

from jaxinfer.layers.linear import product
from jaxinfer.layers.param import Matrix


def embed(table: Matrix, tokens: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Rows of table [vocab, hidden] for tokens [T] int32, in `dtype`, that of a plain table."""
    return table[tokens].astype(dtype)


def scores(table: Matrix, hidden: jax.Array) -> jax.Array:
    """hidden [S, d] against table [vocab, d]: [S, vocab] float32."""
    return product(hidden, table)
