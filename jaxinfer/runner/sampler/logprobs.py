"""Log-probabilities of the raw distribution: of one token a row, and of the most likely ones."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer.sampling import MAX_LOGPROBS

_FAST_TOP_K = 16  # XLA's TopK is fast up to here; beyond it is a sort


class Logprobs(NamedTuple):
    """[S] float32, [S] int32 from 1, [S, MAX_LOGPROBS] int32 and float32, most likely first."""

    logprobs: jax.Array
    ranks: jax.Array
    top_ids: jax.Array
    top_logprobs: jax.Array


def logprobs_of(logits: jax.Array, tokens: jax.Array) -> Logprobs:
    """logits: float32 [S, V]. tokens: int32 [S]."""
    total = jax.nn.logsumexp(logits, axis=1, keepdims=True)
    own = jnp.take_along_axis(logits, tokens[:, None], axis=1)
    top_logits, top_ids = _top(logits, min(MAX_LOGPROBS, logits.shape[1]))
    missing = ((0, 0), (0, MAX_LOGPROBS - top_ids.shape[1]))
    return Logprobs(
        logprobs=(own - total)[:, 0],
        ranks=1 + jnp.sum(logits > own, axis=1, dtype=jnp.int32),
        top_ids=jnp.pad(top_ids, missing),
        top_logprobs=jnp.pad(top_logits - total, missing, constant_values=-jnp.inf),
    )


def no_logprobs(rows: int) -> Logprobs:
    """What stands for log-probabilities that nobody asked for."""
    return Logprobs(
        jnp.zeros(rows, jnp.float32),
        jnp.zeros(rows, jnp.int32),
        jnp.zeros((rows, MAX_LOGPROBS), jnp.int32),
        jnp.zeros((rows, MAX_LOGPROBS), jnp.float32),
    )


def _top(logits: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    values, ids = jax.lax.top_k(logits, min(count, _FAST_TOP_K))
    if count <= _FAST_TOP_K:
        return values, ids
    rows = jnp.arange(logits.shape[0])[:, None]
    rest, rest_ids = jax.lax.top_k(logits.at[rows, ids].set(-jnp.inf), count - _FAST_TOP_K)
    return jnp.concatenate([values, rest], axis=1), jnp.concatenate([ids, rest_ids], axis=1)
