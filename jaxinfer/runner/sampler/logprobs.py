"""Log-probabilities of the raw distribution: of one token a row, and of the most likely ones."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer.runner.sampler.vocabulary import WHOLE, Vocabulary
from jaxinfer.sampling import MAX_LOGPROBS

_FAST_TOP_K = 16  # XLA's TopK is fast up to here; beyond it is a sort


class Logprobs(NamedTuple):
    """[S] float32, [S] int32 from 1, [S, MAX_LOGPROBS] int32 and float32, most likely first."""

    logprobs: jax.Array
    ranks: jax.Array
    top_ids: jax.Array
    top_logprobs: jax.Array


def logprobs_of(logits: jax.Array, tokens: jax.Array, vocabulary: Vocabulary = WHOLE) -> Logprobs:
    """logits: float32 [S, V]. tokens: int32 [S]."""
    total, own = _total(logits, vocabulary), _of_tokens(logits, tokens, vocabulary)
    top_logits, top_ids = _top_of_all(logits, vocabulary)
    missing = ((0, 0), (0, MAX_LOGPROBS - top_ids.shape[1]))
    return Logprobs(
        logprobs=(own - total)[:, 0],
        ranks=1 + vocabulary.sum(jnp.sum(logits > own, axis=1, dtype=jnp.int32)),
        top_ids=jnp.pad(top_ids, missing),
        top_logprobs=jnp.pad(top_logits - total, missing, constant_values=-jnp.inf),
    )


def no_logprobs(rows: int) -> Logprobs:
    """Return zeros in place of log-probabilities that nobody asked for."""
    return Logprobs(
        jnp.zeros(rows, jnp.float32),
        jnp.zeros(rows, jnp.int32),
        jnp.zeros((rows, MAX_LOGPROBS), jnp.int32),
        jnp.zeros((rows, MAX_LOGPROBS), jnp.float32),
    )


def _total(logits: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    """The logarithm of the sum of exponentials, [S, 1]."""
    if not vocabulary.axes:
        return jax.nn.logsumexp(logits, axis=1, keepdims=True)
    highest = vocabulary.max(jnp.max(logits, axis=1, keepdims=True))
    return highest + jnp.log(vocabulary.sum(jnp.sum(jnp.exp(logits - highest), axis=1, keepdims=True)))


def _of_tokens(logits: jax.Array, tokens: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    """The logit of each row's token, [S, 1], from the device that holds it."""
    width = logits.shape[1]
    columns = vocabulary.columns(tokens, width)[:, None]
    own = jnp.take_along_axis(logits, jnp.minimum(columns, width - 1), axis=1)
    return own if not vocabulary.axes else vocabulary.max(jnp.where(columns < width, own, -jnp.inf))


def _top_of_all(logits: jax.Array, vocabulary: Vocabulary) -> tuple[jax.Array, jax.Array]:
    """The most likely tokens, MAX_LOGPROBS where there are as many: of each device's, in the order of their ids."""
    width = logits.shape[1]
    values, ids = _top(logits, min(MAX_LOGPROBS, width))
    if not vocabulary.axes:
        return values, ids
    values, ids = vocabulary.joined(values), vocabulary.joined(ids + vocabulary.first(width))
    top, places = _top(values, min(MAX_LOGPROBS, values.shape[1]))
    return top, jnp.take_along_axis(ids, places, axis=1)


def _top(logits: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    values, ids = jax.lax.top_k(logits, min(count, _FAST_TOP_K))
    if count <= _FAST_TOP_K:
        return values, ids
    rows = jnp.arange(logits.shape[0])[:, None]
    rest, rest_ids = jax.lax.top_k(logits.at[rows, ids].set(-jnp.inf), count - _FAST_TOP_K)
    return jnp.concatenate([values, rest], axis=1), jnp.concatenate([ids, rest_ids], axis=1)
