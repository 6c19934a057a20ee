"""`sample`: head, sampler and the update of slot state, over the first S scored positions."""

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.forward import Scored
from jaxinfer.runner.sampler import Sampled, sample_tokens
from jaxinfer.runner.sampler.adjust import count_drawn
from jaxinfer.runner.state import SlotParams, SlotState
from jaxinfer.runner.vocabulary_shards import WHOLE, columns, over_vocabulary


def sample(
    model: LoadedModel,
    shapes: EngineShapes,
    size: int,
    head: tuple[jax.Array, ...],
    state: SlotState,
    params: SlotParams,
    hidden: jax.Array,
    scored: Scored,
) -> tuple[SlotState, Sampled]:
    """Draws for the first `size` of the scored positions. state is donated. Never sees KV."""
    return draw(model, shapes, head, state, params, hidden[:size], Scored(*(x[:size] for x in scored)))


def draw(
    model: LoadedModel,
    shapes: EngineShapes,
    head: tuple[jax.Array, ...],
    state: SlotState,
    params: SlotParams,
    hidden: jax.Array,
    scored: Scored,
) -> tuple[SlotState, Sampled]:
    """Draws for all of the scored positions, whose hidden states are [S, d]."""
    slots = scored.slots
    logits = model.logits(head, hidden)
    own = jax.tree.map(lambda column: column[slots], params)
    split = columns(model)
    sampled = over_vocabulary(model, sample_tokens, (split, split, *[WHOLE] * 4), WHOLE)(
        logits, state.counts, slots, own, scored.positions, scored.targets
    )
    tokens = jnp.maximum(sampled.tokens, 0)
    # Positions that draw nothing write to the scratch slot.
    drawn = jnp.where(scored.draws > 0, slots, shapes.scratch_slot)
    counting = jnp.where(scored.draws > 0, own.uses_counts, 0)
    state = SlotState(
        length=state.length.at[drawn].set(scored.positions),
        last_token=state.last_token.at[drawn].set(tokens),
        remaining=state.remaining.at[drawn].add(-1),
        counts=over_vocabulary(model, count_drawn, (split, *[WHOLE] * 3), split)(state.counts, drawn, tokens, counting),
    )
    return state, sampled
