"""Drafts by n-grams: what followed the last tokens of a row where they stood before (prompt lookup), or stand in its
prediction."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer.speculation import Speculation


class NgramDrafts(NamedTuple):
    """tokens: int32 [R, K], of which a row has the first `count`, int32 [R]. predicted: bool [R], whether they come
    from the row's prediction."""

    tokens: jax.Array
    count: jax.Array
    predicted: jax.Array


class PredictionPlace(NamedTuple):
    """Place of each row's prediction, int32 [R]. size: number of the row's last places, which hold the last tokens of
    its prompt, up to `longest`, and the predicted ones; 0 for none. prompt_len: tokens of its prompt."""

    size: jax.Array
    prompt_len: jax.Array


def ngram_drafts(
    history: jax.Array, length: jax.Array, prediction: PredictionPlace, speculation: Speculation
) -> NgramDrafts:
    """history: int32 [R, L], the tokens of each row: those up to position `length` [R], and its prediction at its end.
    What lies between is not read.

    Of all earlier places, and those of the prediction, the one that shares the most of the row's last tokens is taken,
    up to `longest` and at least `shortest` of them. Of several one of the prediction, namely the nearest to where the
    row would be if it had said what is predicted; else the latest. Drafts that would come from beyond the last token
    begin again behind that place: a text that repeats itself goes on doing so. A prediction just ends.
    """
    end = history.shape[1]
    start = end - prediction.size
    first = jnp.maximum(start, length + 1)  # outputs may have reached the prediction
    shared = _shared(history, length, first, speculation.longest)
    place = jnp.arange(end, dtype=jnp.int32)
    predicted = (place >= first[:, None]) & (place < end - 1)
    aligned = start + jnp.minimum(prediction.prompt_len, speculation.longest) + length - prediction.prompt_len
    rank = jnp.where(predicted, 2 * end - jnp.minimum(jnp.abs(place - aligned[:, None]), end), place)
    known = (place < length[:, None]) | predicted
    score = jnp.where(known & (shared >= speculation.shortest), shared * (2 * end + 1) + rank, -1)
    found = jnp.max(score, axis=1) >= 0
    at = jnp.where(found, jnp.argmax(score, axis=1), 0).astype(jnp.int32)
    from_prediction = found & (at > length)
    follow = jnp.where(from_prediction, end - 1 - at, jnp.maximum(length - at, 1))
    steps = jnp.arange(speculation.tokens, dtype=jnp.int32)
    tokens = jnp.take_along_axis(history, at[:, None] + 1 + steps % follow[:, None], axis=1)
    count = jnp.where(from_prediction, jnp.minimum(follow, speculation.tokens), speculation.tokens)
    return NgramDrafts(tokens, jnp.where(found, count, 0).astype(jnp.int32), from_prediction)


def _shared(history: jax.Array, length: jax.Array, first: jax.Array, longest: int) -> jax.Array:
    """Count the tokens up to each place that equal the row's last ones, at most `longest`: int32 [R, L]. first: place
    at which the prediction begins, [R]; it shares nothing with earlier places."""
    shared, going = jnp.zeros_like(history), jnp.ones_like(history, bool)
    place = jnp.arange(history.shape[1], dtype=jnp.int32)
    start = jnp.where(place > length[:, None], first[:, None], 0)
    for back in range(longest):
        last = jnp.take_along_axis(history, jnp.maximum(length - back, 0)[:, None], axis=1)
        before = jnp.roll(history, back, axis=1)
        going &= (before == last) & (place - back >= start) & (length >= back)[:, None]
        shared += going
    return shared
