"""Token embedding, and its use as the head."""

import jax
import jax.numpy as jnp
from jaxinfer_kernels.stack import StackLayer

from jaxinfer.layers.linear import Linear
from jaxinfer.layers.param import Matrix


def embed(table: Matrix, tokens: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Rows of table [vocab, hidden] for tokens [T] int32, in `dtype`, that of a plain table."""
    assert not isinstance(table, StackLayer)
    return table[tokens].astype(dtype)


def scores(head: Linear, hidden: jax.Array) -> jax.Array:
    """hidden [S, d] against the table [vocab, d] of a head: [S, vocab] float32."""
    if len(hidden) == 1 and hidden.dtype != jnp.float32 and not isinstance(head.weight, StackLayer):
        # XLA for a GPU may widen the whole table to float32 for one row: 1.7 ms for the head of Llama-3.1-8B on an H100
        # (jax 0.11.2), where 32 rows take 0.4.
        return head.sums(jnp.pad(hidden, ((0, 1), (0, 0))))[:1]
    return head.sums(hidden)
