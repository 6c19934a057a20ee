"""Changes to logits before a draw: logit bias, banned stop ids, penalties."""

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.slot_init import MAX_COUNT, SEEN_IN_PROMPT
from jaxinfer.runner.sampler.vocabulary import WHOLE, Vocabulary
from jaxinfer.runner.state import SlotParams


def adjust(
    logits: jax.Array,
    counts: jax.Array | None,
    slots: jax.Array,
    params: SlotParams,
    generated: jax.Array,
    vocabulary: Vocabulary = WHOLE,
    before: jax.Array | None = None,
) -> jax.Array:
    """Logit bias, then min_tokens, then penalties, as vLLM orders them: float32 [S, V] -> [S, V].

    counts: int16 [slots, V]; None: of no tokens but `before`. slots: int32 [S]. params: rows gathered to [S].
    generated: int32 [S], output tokens before the one to be drawn. before: int32 [S, K], the last of them, which are
    not in `counts`; -1 where unused.
    Each part is skipped where no row asks for it.
    """
    biased = jax.lax.cond(jnp.any(params.bias_ids >= 0), lambda: _bias(logits, params, vocabulary), lambda: logits)
    early = generated < params.columns["min_tokens"]
    allowed = jax.lax.cond(
        jnp.any(early), lambda: _ban_stops(biased, params.stop_ids, early, vocabulary), lambda: biased
    )

    def penalise() -> jax.Array:
        penalised = allowed if counts is None else _penalise(allowed, counts[slots], params)
        return penalised if before is None else _recount(penalised, allowed, counts, slots, params, before, vocabulary)

    return jax.lax.cond(jnp.any(params.uses_counts > 0), penalise, lambda: allowed)


def count_drawn(
    counts: jax.Array, slots: jax.Array, tokens: jax.Array, uses_counts: jax.Array, vocabulary: Vocabulary = WHOLE
) -> jax.Array:
    """Adds drawn tokens to the counts of slots that keep them; a count stays at MAX_COUNT once there."""
    scratch = counts.shape[0] - 1

    def add() -> jax.Array:
        kept = jnp.where(uses_counts > 0, slots, scratch)
        own = vocabulary.columns(tokens, counts.shape[1])
        old = counts.at[kept, own].get(mode="clip")
        return counts.at[kept, own].set(jnp.where(old & MAX_COUNT == MAX_COUNT, old, old + 1), mode="drop")

    return jax.lax.cond(jnp.any(uses_counts > 0), add, lambda: counts)


def set_counts(
    counts: jax.Array, slots: jax.Array, tokens: jax.Array, values: jax.Array, vocabulary: Vocabulary = WHOLE
) -> jax.Array:
    """Writes the counts, int16 [C], of some tokens of some slots, int32 [C] each."""
    return counts.at[slots, vocabulary.columns(tokens, counts.shape[1])].set(values, mode="drop")


def _penalise(logits: jax.Array, counts: jax.Array, params: SlotParams) -> jax.Array:
    """Repetition (Keskar et al. 2019, over prompt and output), then OpenAI's frequency and presence (over output)."""
    generated = (counts & MAX_COUNT).astype(jnp.float32)
    seen = counts > 0
    # A factor that float32 rounds to 0 must not make NaN of a banned token, nor a tiny one infinities of finite logits.
    float32 = jnp.finfo(jnp.float32)
    asked = params.columns
    factor = jnp.maximum(asked["repetition_penalty"], float32.tiny)[:, None]
    repeated = jnp.where(logits > 0, jnp.minimum(logits / factor, float32.max), logits * factor)
    penalised = jnp.where(seen, repeated, logits)
    penalised -= asked["frequency_penalty"][:, None] * generated
    penalised -= asked["presence_penalty"][:, None] * (generated > 0)
    return jnp.where(params.uses_counts[:, None] > 0, penalised, logits)


def _recount(
    penalised: jax.Array,
    logits: jax.Array,
    counts: jax.Array | None,
    slots: jax.Array,
    params: SlotParams,
    before: jax.Array,
    vocabulary: Vocabulary,
) -> jax.Array:
    """Penalties of the tokens `before`, [S, K], with those counted: of no others do counts differ."""
    rows, own = jnp.arange(len(slots))[:, None], vocabulary.columns(before, logits.shape[1])
    kept = jnp.zeros_like(own)
    if counts is not None:
        kept = counts.at[slots[:, None], own].get(mode="fill", fill_value=0).astype(jnp.int32)
    more = jnp.sum(before[:, :, None] == before[:, None, :], axis=2, dtype=jnp.int32)
    generated = jnp.minimum((kept & MAX_COUNT) + more, MAX_COUNT)
    raw = logits.at[rows, own].get(mode="fill", fill_value=0.0)
    again = _penalise(raw, (kept & SEEN_IN_PROMPT) | generated, params)
    return penalised.at[rows, own].set(again, mode="drop")


def _bias(logits: jax.Array, params: SlotParams, vocabulary: Vocabulary) -> jax.Array:
    rows = jnp.arange(logits.shape[0])[:, None]
    # A column beyond the last is dropped: unused entries must touch no token.
    return logits.at[rows, vocabulary.columns(params.bias_ids, logits.shape[1])].add(params.bias_values, mode="drop")


def _ban_stops(logits: jax.Array, stop_ids: jax.Array, early: jax.Array, vocabulary: Vocabulary) -> jax.Array:
    rows = jnp.arange(logits.shape[0])[:, None]
    banned = jnp.where(early[:, None], stop_ids, -1)
    return logits.at[rows, vocabulary.columns(banned, logits.shape[1])].set(-jnp.inf, mode="drop")


assert SEEN_IN_PROMPT > MAX_COUNT  # `counts > 0` means seen: in the prompt, generated, or both
