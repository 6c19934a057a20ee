"""Drafts by n-grams: what followed the last tokens of a row where they stood before (prompt lookup)."""

import jax
import jax.numpy as jnp

from jaxinfer.speculation import Speculation


def ngram_drafts(history: jax.Array, length: jax.Array, speculation: Speculation) -> tuple[jax.Array, jax.Array]:
    """history: int32 [R, L], the tokens of each row, of which those up to position `length` [R] are valid. Returns
    drafts, int32 [R, tokens], and how many of them a row has, int32 [R]: all or none.

    Of all earlier places the one that shares the most of the row's last tokens is taken, up to `longest` and at least
    `shortest` of them, and the latest of several. Drafts that would come from beyond the last token begin again behind
    that place: a text that repeats itself goes on doing so.
    """
    shared = _shared(history, length, speculation.longest)
    place = jnp.arange(history.shape[1], dtype=jnp.int32)
    earlier = (place < length[:, None]) & (shared >= speculation.shortest)
    score = jnp.where(earlier, shared * history.shape[1] + place, -1)
    best = jnp.max(score, axis=1)
    found = best >= 0
    at = jnp.where(found, best % history.shape[1], 0)
    period = jnp.maximum(length - at, 1)[:, None]
    steps = jnp.arange(speculation.tokens, dtype=jnp.int32)
    drafts = jnp.take_along_axis(history, at[:, None] + 1 + steps % period, axis=1)
    return drafts, jnp.where(found, speculation.tokens, 0).astype(jnp.int32)


def _shared(history: jax.Array, length: jax.Array, longest: int) -> jax.Array:
    """How many tokens up to each place equal the row's last ones, at most `longest`: int32 [R, L]."""
    shared, going = jnp.zeros_like(history), jnp.ones_like(history, bool)
    place = jnp.arange(history.shape[1], dtype=jnp.int32)
    for back in range(longest):
        last = jnp.take_along_axis(history, jnp.maximum(length - back, 0)[:, None], axis=1)
        before = jnp.roll(history, back, axis=1)
        going &= (before == last) & (place >= back) & (length >= back)[:, None]
        shared += going
    return shared
