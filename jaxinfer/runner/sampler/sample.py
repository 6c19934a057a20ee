"""One draw for every scored position. A greedy batch costs one argmax."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer.runner.sampler.adjust import adjust
from jaxinfer.runner.sampler.draw import Purpose, inverse_cdf, uniforms, weights_left
from jaxinfer.runner.sampler.logprobs import Logprobs, logprobs_of, no_logprobs
from jaxinfer.runner.sampler.masks import masked
from jaxinfer.runner.sampler.vocabulary import WHOLE, Vocabulary
from jaxinfer.runner.state import SlotParams
from jaxinfer.sampling import columns

_NO_ID = jnp.iinfo(jnp.int32).max


class Sampled(NamedTuple):
    """tokens: int32 [S], -1 where logits were not finite. logprobs: zeros where nobody asked."""

    tokens: jax.Array
    logprobs: Logprobs


def sample_tokens(
    logits: jax.Array,
    counts: jax.Array | None,
    slots: jax.Array,
    params: SlotParams,
    positions: jax.Array,
    targets: jax.Array,
    masks: jax.Array | None = None,
    before: jax.Array | None = None,
    places: jax.Array | None = None,
    vocabulary: Vocabulary = WHOLE,
) -> Sampled:
    """Adjusts logits (`adjust`), masks them (`masked`), filters them (`weights_left`), draws; log-probabilities are of
    the raw logits.

    logits: float32 [S, V], this device's columns. counts: int16 [slots, V], likewise; None as in `adjust`. slots: int32
    [S]. params: rows gathered to [S]. positions: int32 [S], of the token to be drawn. targets: int32 [S], -1 for a
    draw, else the token whose log-probability is asked for. masks: int32 [n, words]; None: no row is constrained.
    places: int32 [S], where in `masks` each position's is; None: at its slot.
    before: int32 [S, K], tokens that come before a position and are not counted yet, -1 where unused; None: none.
    """
    logits = vocabulary.of_tokens(logits)
    adjusted = adjust(logits, counts, slots, params, positions - params.prompt_len, vocabulary, before)
    if masks is not None:
        adjusted = masked(adjusted, masks, slots if places is None else places, params.constrained, vocabulary)
    # Not `isfinite(max)`: XLA's maximum on CPU may lose a NaN. A row whose every token is banned has nothing to draw.
    broken = vocabulary.any(~jnp.all(logits < jnp.inf, axis=1))
    finite = ~broken & vocabulary.any(jnp.any(adjusted > -jnp.inf, axis=1))
    tokens = _most_likely(adjusted, vocabulary)
    greedy = (params.columns["temperature"] == 0) | (params.columns["top_k"] == 1)

    def draw() -> jax.Array:
        uniform = uniforms(params, positions, Purpose.SAMPLE)
        # Greedy rows, padding among them, must not make the whole batch search for thresholds.
        asked = {name: jnp.where(greedy, own.neutral, params.columns[name]) for name, own in columns().items()}
        return jnp.where(greedy, tokens, inverse_cdf(weights_left(adjusted, asked, vocabulary), uniform, vocabulary))

    tokens = jax.lax.cond(jnp.all(greedy), lambda: tokens, draw)
    asked = (params.wants_logprobs > 0) | (targets >= 0)
    logprobs = jax.lax.cond(
        jnp.any(asked),
        lambda: logprobs_of(logits, jnp.where(targets >= 0, targets, tokens), vocabulary),
        lambda: no_logprobs(logits.shape[0]),
    )
    return Sampled(jnp.where(finite, tokens, -1), logprobs)


def _most_likely(logits: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    """The lowest id among the most likely ones, int32 [S]; any id where a logit is not a number."""
    # Two reductions: XLA's argmax on CPU is a scalar loop, of 0.6 ms a row of 152k tokens instead of 0.08.
    highest = vocabulary.max(jnp.max(logits, axis=1))
    ids = vocabulary.first(logits.shape[1]) + jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    found = vocabulary.min(jnp.min(jnp.where(logits >= highest[:, None], ids, _NO_ID), axis=1))
    return jnp.where(found < _NO_ID, found, 0)
