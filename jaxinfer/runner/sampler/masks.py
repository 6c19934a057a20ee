"""Masks of the tokens that constrained rows may draw: a bit a token, packed 32 to a word, the lowest bit first."""

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.shapes import WORD_BITS
from jaxinfer.runner.sampler.vocabulary import WHOLE, Vocabulary


def masked(
    logits: jax.Array,
    masks: jax.Array,
    slots: jax.Array,
    constrained: jax.Array,
    vocabulary: Vocabulary = WHOLE,
) -> jax.Array:
    """Logits, float32 [S, V] of this device's columns, with -inf where a constrained row may draw nothing.

    masks: int32 [slots, words], of all tokens, whole on every device. slots, constrained: int32 [S]. Costs nothing
    where no row is constrained.
    """
    asked = constrained > 0

    def apply() -> jax.Array:
        allowed = _bits(masks[slots], vocabulary, logits.shape[1])
        return jnp.where(allowed | ~asked[:, None], logits, -jnp.inf)

    return jax.lax.cond(jnp.any(asked), apply, lambda: logits)


def set_masks(masks: jax.Array, slots: jax.Array, rows: jax.Array) -> jax.Array:
    """masks with those of some slots, int32 [R] and [R, words]."""
    return masks.at[slots].set(rows)


def _bits(words: jax.Array, vocabulary: Vocabulary, width: int) -> jax.Array:
    """bool [S, width]: the bits of this device's columns. A shard may begin within a word."""
    if not vocabulary.axes:
        return _unpacked(words, width)[:, :width]
    first, count = vocabulary.first(width), -(-width // WORD_BITS) + 1
    beyond = jnp.pad(words, ((0, 0), (0, count)))
    own = jax.lax.dynamic_slice_in_dim(beyond, first // WORD_BITS, count, axis=1)
    return jax.lax.dynamic_slice_in_dim(_unpacked(own, width), first % WORD_BITS, width, axis=1)


def _unpacked(words: jax.Array, width: int) -> jax.Array:
    """bool [S, n] of int32 [S, words]; n is at least `width`, and bits beyond the last word are 0."""
    spread = jnp.repeat(words, WORD_BITS, axis=1)
    places = jnp.arange(spread.shape[1], dtype=jnp.int32) % WORD_BITS
    bits = jax.lax.shift_right_logical(spread, jnp.broadcast_to(places, spread.shape)) & 1
    return jnp.pad(bits, ((0, 0), (0, max(width - bits.shape[1], 0)))) > 0
