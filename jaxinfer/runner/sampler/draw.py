"""Drawing a token: thresholds, one uniform number a row, inverse cumulative distribution by blocks."""

import enum

import jax
import jax.numpy as jnp

from jaxinfer.runner.sampler.thresholds import largest_threshold, ordered_bits
from jaxinfer.runner.sampler.vocabulary import WHOLE, Vocabulary
from jaxinfer.runner.state import SlotParams

_BLOCK = 512
_NO_ID = jnp.iinfo(jnp.int32).max


class Purpose(enum.IntEnum):
    """Purpose of a random number; each has a stream of its own."""

    SAMPLE = 0


def uniforms(params: SlotParams, positions: jax.Array, purpose: Purpose) -> jax.Array:
    """float32 [S] in [0, 1): of each row's seed, sequence index and position alone, whatever runs beside it.

    params: rows gathered to [S]. positions: int32 [S], of the token to be drawn.
    """

    def one(seed: jax.Array, index: jax.Array, position: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        for part in (index, position, int(purpose)):
            key = jax.random.fold_in(key, part)
        return jax.random.uniform(key)

    return jax.vmap(one)(params.seed, params.sequence_index, positions)


def weights_left(logits: jax.Array, asked: dict[str, jax.Array], vocabulary: Vocabulary = WHOLE) -> jax.Array:
    """Unnormalised probabilities after top_n_sigma, temperature, min_p, top_k and top_p, in that order: float32 [S, V].

    top_n_sigma follows penalties and precedes the other filters, as in llama.cpp: its standard deviation is that of all
    tokens but banned ones. Temperature scales logits and deviation alike: before or after makes no difference.

    asked: columns of SlotParams, of rows gathered to [S]. The most likely token weighs 1. Rows whose temperature is 0
    get finite values without meaning.
    """
    temperature = jnp.where(asked["temperature"] > 0, asked["temperature"], 1.0)
    # The maximum goes first: a small temperature would make infinities, whose difference is NaN.
    scaled = (logits - vocabulary.max(jnp.max(logits, axis=1, keepdims=True))) / temperature[:, None]
    lowest = _lowest_kept(logits, asked["top_n_sigma"], vocabulary)
    kept = (logits >= lowest[:, None]) & (scaled >= jnp.log(asked["min_p"])[:, None])
    weights = jnp.where(kept, jnp.exp(scaled), 0.0)
    keys = jnp.where(weights > 0, ordered_bits(scaled), 0)
    weights, keys = _keep_top_k(weights, keys, asked["top_k"], vocabulary)
    return _keep_top_p(weights, keys, asked["top_p"], vocabulary)


def inverse_cdf(weights: jax.Array, uniform: jax.Array, vocabulary: Vocabulary = WHOLE) -> jax.Array:
    """The index at which the cumulative weight first exceeds `uniform` of the total: int32 [S]; never one of weight 0.

    weights: float32 [S, V]. uniform: [S] in [0, 1). Sums go by blocks, so that only one block a row is
    summed element by element.
    """
    rows, size = weights.shape
    blocks = jnp.pad(weights, ((0, 0), (0, -size % _BLOCK))).reshape(rows, -1, _BLOCK)
    ends = jnp.cumsum(blocks.sum(axis=2), axis=1)
    own = ends[:, -1]
    ends += vocabulary.before(own)[:, None]
    goal = uniform * vocabulary.sum(own)
    block = _first_above(ends, goal, blocks.any(axis=2))
    before = jnp.where(
        block > 0, jnp.take_along_axis(ends, jnp.maximum(block - 1, 0)[:, None], axis=1)[:, 0], ends[:, -1] - own
    )
    inside = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    place = _first_above(before[:, None] + jnp.cumsum(inside, axis=1), goal, inside > 0)
    return _of_first_device(block * _BLOCK + place, ends[:, -1] > goal, own > 0, size, vocabulary)


def _first_above(sums: jax.Array, goal: jax.Array, possible: jax.Array) -> jax.Array:
    """First possible index whose sum exceeds the goal; the last possible one where rounding left none."""
    above = (sums > goal[:, None]) & possible
    last = possible.shape[1] - 1 - jnp.argmax(possible[:, ::-1], axis=1)
    return jnp.where(above.any(axis=1), jnp.argmax(above, axis=1), last)


def _of_first_device(
    column: jax.Array, above: jax.Array, possible: jax.Array, width: int, vocabulary: Vocabulary
) -> jax.Array:
    """The id of `column` of the first device whose sum exceeds the goal, of the last possible one where none does."""
    ids = (vocabulary.first(width) + column).astype(jnp.int32)
    if not vocabulary.axes:
        return ids
    first = vocabulary.min(jnp.where(above & possible, ids, _NO_ID))
    last = vocabulary.max(jnp.where(possible, ids, 0))
    return jnp.where(first < _NO_ID, first, last)


def _lowest_kept(logits: jax.Array, top_n_sigma: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    """The lowest logit that top_n_sigma keeps (Tang et al., arXiv:2411.07641): float32 [S]; where off, -inf."""

    def lowest() -> jax.Array:
        allowed = logits > -jnp.inf  # what is banned has no part in the deviation
        count = vocabulary.sum(jnp.sum(allowed, axis=1))
        mean = vocabulary.sum(jnp.sum(logits, axis=1, where=allowed)) / count
        squares = jnp.sum((logits - mean[:, None]) ** 2, axis=1, where=allowed)
        deviation = jnp.sqrt(vocabulary.sum(squares) / count)
        highest = vocabulary.max(jnp.max(logits, axis=1))
        return jnp.where(top_n_sigma > 0, highest - top_n_sigma * deviation, -jnp.inf)

    return jax.lax.cond(jnp.any(top_n_sigma > 0), lowest, lambda: jnp.full(top_n_sigma.shape, -jnp.inf))


def _keep_top_k(
    weights: jax.Array, keys: jax.Array, top_k: jax.Array, vocabulary: Vocabulary
) -> tuple[jax.Array, jax.Array]:
    def cut() -> tuple[jax.Array, jax.Array]:
        threshold = jnp.where(top_k > 0, largest_threshold(keys, None, top_k, vocabulary), 0)
        keep = keys >= threshold[:, None]
        return jnp.where(keep, weights, 0.0), jnp.where(keep, keys, 0)

    return jax.lax.cond(jnp.any(top_k > 0), cut, lambda: (weights, keys))


def _keep_top_p(weights: jax.Array, keys: jax.Array, top_p: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    def cut() -> jax.Array:
        # A goal of 0, which a tiny top_p rounds to, would be reached by nothing.
        goal = jnp.maximum(top_p * vocabulary.sum(weights.sum(axis=1)), jnp.finfo(jnp.float32).tiny)
        threshold = largest_threshold(keys, weights, goal, vocabulary)
        threshold = jnp.where(top_p < 1, threshold, 0)
        return jnp.where(keys >= threshold[:, None], weights, 0.0)

    return jax.lax.cond(jnp.any(top_p < 1), cut, lambda: weights)
