"""Exact thresholds without a sort: a search over the bits of ordered floats.

A float32 maps to a uint32 of the same order. The largest threshold whose kept weight reaches a goal is
found digit by digit from the top: each pass weighs all candidates of the next bits at once. Where reading
is what costs, four bits a pass; on a CPU comparing costs, and one bit a pass is five times faster
(32 rows of 151,936 on two cores).
"""

from functools import partial

import jax
import jax.numpy as jnp

from jaxinfer.runner.sampler.vocabulary import WHOLE, Vocabulary

_CPU_DIGIT_BITS, _DIGIT_BITS = 1, 4


def ordered_bits(x: jax.Array) -> jax.Array:
    """uint32 of the same shape and order as float32 x; no finite number maps to 0."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    negative = bits >> 31 == 1
    return jnp.where(negative, ~bits, bits | jnp.uint32(1 << 31))


def largest_threshold(
    keys: jax.Array, weights: jax.Array | None, goal: jax.Array, vocabulary: Vocabulary = WHOLE
) -> jax.Array:
    """The largest t with `sum(weights[keys >= t]) >= goal`, a row; 0 where no t reaches the goal.

    keys: uint32 [S, V]. weights: float32 [S, V], None counts. goal: float32, or int32 for counts, [S].
    Returns uint32 [S]. Entries that are equal to the threshold stay, so ties are kept whole.
    """
    return jax.lax.platform_dependent(
        keys,
        goal,
        *(() if weights is None else (weights,)),
        cpu=partial(_search, _CPU_DIGIT_BITS, vocabulary),
        default=partial(_search, _DIGIT_BITS, vocabulary),
    )


def _search(
    bits: int, vocabulary: Vocabulary, keys: jax.Array, goal: jax.Array, weights: jax.Array | None = None
) -> jax.Array:
    digits = jnp.arange(1, 1 << bits, dtype=jnp.uint32)
    weighed = jnp.int32(1) if weights is None else weights[:, :, None]

    def refine(step: jax.Array, found: jax.Array) -> jax.Array:
        shift = (32 - bits * (step + 1)).astype(jnp.uint32)
        candidates = found[:, None] | (digits << shift)[None, :]
        kept = vocabulary.sum(jnp.sum(jnp.where(keys[:, :, None] >= candidates[:, None, :], weighed, 0), axis=1))
        digit = jnp.sum(kept >= goal[:, None], axis=1).astype(jnp.uint32)
        return found | (digit << shift)

    return jax.lax.fori_loop(0, 32 // bits, refine, jnp.zeros(keys.shape[0], jnp.uint32))
