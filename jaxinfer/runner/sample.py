"""`sample`: head, sampler and the update of slot state, over the first S scored positions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.layouts import LOGPROBS
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.forward import Scored
from jaxinfer.runner.sampler import Sampled, sample_tokens
from jaxinfer.runner.sampler.adjust import count_drawn
from jaxinfer.runner.sampler.logprobs import Logprobs
from jaxinfer.runner.state import Newest, SlotParams, SlotState, set_history, unpack_newest, unpack_params
from jaxinfer.runner.vocabulary_shards import WHOLE, columns, over_vocabulary


class SampledArrays(NamedTuple):
    """What `sample` gives to the host: tokens as in `Sampled`, logprobs int32 [S, LOGPROBS.size]."""

    tokens: jax.Array
    logprobs: jax.Array


def sample(
    model: LoadedModel,
    shapes: EngineShapes,
    size: int,
    head: tuple[jax.Array, ...],
    state: SlotState,
    params: jax.Array,
    masks: jax.Array,
    hidden: jax.Array,
    scored: jax.Array,
) -> tuple[SlotState, SampledArrays]:
    """Draws for the first `size` of the scored positions, int32 [max_scored, 4]. state is donated. Never sees KV."""
    state, sampled = draw(model, shapes, head, state, params, hidden[:size], Scored.unpacked(scored[:size]), masks)
    return state, SampledArrays(sampled.tokens, packed_logprobs(sampled.logprobs))


def draw(
    model: LoadedModel,
    shapes: EngineShapes,
    head: tuple[jax.Array, ...],
    state: SlotState,
    params: jax.Array,
    hidden: jax.Array,
    scored: Scored,
    masks: jax.Array | None = None,
) -> tuple[SlotState, Sampled]:
    """Draws for all of the scored positions, whose hidden states are [S, d]. masks: None: no row is constrained."""
    slots = scored.slots
    own, targets = unpack_params(params[slots]), scored.targets
    logits, places = model.logits(head, hidden), slots * shapes.slot_masks
    sampled = sampled_tokens(model, logits, state.counts, slots, own, scored.positions, targets, masks, places=places)
    tokens, draws = jnp.maximum(sampled.tokens, 0), scored.draws > 0
    # Positions that draw nothing write to the scratch slot.
    drawn = jnp.where(draws, slots, shapes.scratch_slot)
    newest = Newest(scored.positions, tokens, unpack_newest(state.newest).remaining[drawn] - 1)
    state = state._replace(
        newest=state.newest.at[drawn].set(newest.packed()),
        counts=counted(model, state.counts, drawn, tokens, draws, params),
    )
    if state.history is not None:
        state = set_history(state, drawn, scored.positions, tokens)
    return state, sampled


def sampled_tokens(
    model: LoadedModel,
    logits: jax.Array,
    counts: jax.Array | None,
    slots: jax.Array,
    own: SlotParams,
    positions: jax.Array,
    targets: jax.Array | None = None,
    masks: jax.Array | None = None,
    before: jax.Array | None = None,
    places: jax.Array | None = None,
) -> Sampled:
    """`sample_tokens` over the model's mesh. targets: None: every position draws."""
    split = columns(model)
    targets = jnp.full_like(slots, -1) if targets is None else targets
    over = over_vocabulary(model, sample_tokens, (split, split, *[WHOLE] * 7), WHOLE)
    return over(logits, counts, slots, own, positions, targets, masks, before, places)


def counted(
    model: LoadedModel, counts: jax.Array, slots: jax.Array, tokens: jax.Array, drawn: jax.Array, params: jax.Array
) -> jax.Array:
    """Counts with the tokens that slots have drawn, [S] each, where they keep counts. drawn: bool [S]."""
    split = columns(model)
    counting = jnp.where(drawn, unpack_params(params[slots]).uses_counts, 0)
    return over_vocabulary(model, count_drawn, (split, *[WHOLE] * 3), split)(counts, slots, tokens, counting)


def packed_logprobs(logprobs: Logprobs) -> jax.Array:
    """int32 [S, LOGPROBS.size]."""
    words = (jax.lax.bitcast_convert_type(part, jnp.int32) for part in logprobs)
    packed = jnp.concatenate([part.reshape(len(part), -1) for part in words], axis=1)
    assert packed.shape[1] == LOGPROBS.size
    return packed
