"""Drafts by n-grams: what followed the last tokens of a row where they stood before (prompt lookup), or in a prediction."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer.speculation import Speculation


class Drafts(NamedTuple):
    """tokens: int32 [R, K], of which a row has the first `count`, int32 [R]. predicted: bool [R], whether they come
    from the row's prediction."""

    tokens: jax.Array
    count: jax.Array
    predicted: jax.Array


def ngram_drafts(history: jax.Array, length: jax.Array, predicted: jax.Array, speculation: Speculation) -> Drafts:
    """history: int32 [R, L], the tokens of each row: those up to position `length` [R], and its prediction in the last
    `predicted` [R] places. What lies between is not read.

    Of all earlier places, and those of the prediction, the one that shares the most of the row's last tokens is taken,
    up to `longest` and at least `shortest` of them, and the latest of several. Drafts that would come from beyond the
    last token begin again behind that place: a text that repeats itself goes on doing so. A prediction just ends.
    """
    end = history.shape[1]
    first = jnp.maximum(end - predicted, length + 1)  # outputs may have reached the prediction
    shared = _shared(history, length, first, speculation.longest)
    place = jnp.arange(end, dtype=jnp.int32)
    known = (place < length[:, None]) | ((place >= first[:, None]) & (place < end - 1))
    score = jnp.where(known & (shared >= speculation.shortest), shared * end + place, -1)
    best = jnp.max(score, axis=1)
    found = best >= 0
    at = jnp.where(found, best % end, 0)
    is_predicted = found & (at > length)
    follow = jnp.where(is_predicted, end - 1 - at, jnp.maximum(length - at, 1))
    steps = jnp.arange(speculation.tokens, dtype=jnp.int32)
    tokens = jnp.take_along_axis(history, at[:, None] + 1 + steps % follow[:, None], axis=1)
    count = jnp.where(is_predicted, jnp.minimum(follow, speculation.tokens), speculation.tokens)
    return Drafts(tokens, jnp.where(found, count, 0).astype(jnp.int32), is_predicted)


def _shared(history: jax.Array, length: jax.Array, first: jax.Array, longest: int) -> jax.Array:
    """How many tokens up to each place equal the row's last ones, at most `longest`: int32 [R, L]. first: place at
    which the prediction begins, [R], which shares nothing with what lies before it."""
    shared, going = jnp.zeros_like(history), jnp.ones_like(history, bool)
    place = jnp.arange(history.shape[1], dtype=jnp.int32)
    start = jnp.where(place > length[:, None], first[:, None], 0)
    for back in range(longest):
        last = jnp.take_along_axis(history, jnp.maximum(length - back, 0)[:, None], axis=1)
        before = jnp.roll(history, back, axis=1)
        going &= (before == last) & (place - back >= start) & (length >= back)[:, None]
        shared += going
    return shared
