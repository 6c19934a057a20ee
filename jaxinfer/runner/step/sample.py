"""`sample`: head, sampler and the update of slot state, over the first S scored positions."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.layouts import LOGPROBS
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.platform.values import platform_of
from jaxinfer.runner.sampler import Sampled, sample_tokens
from jaxinfer.runner.sampler.adjust import count_drawn
from jaxinfer.runner.sampler.by_rows import sample_by_rows
from jaxinfer.runner.sampler.logprobs import Logprobs, no_logprobs
from jaxinfer.runner.state import Newest, SlotParams, SlotState, set_history, unpack_newest, unpack_params
from jaxinfer.runner.step.forward import Scored
from jaxinfer.runner.step.stage_slots import handed_back
from jaxinfer.runner.step.vocabulary_shards import WHOLE, columns, over_vocabulary

_PART = 8


class SampledArrays(NamedTuple):
    """Results of `sample` for the host: tokens as in `Sampled`, logprobs int32 [S, LOGPROBS.size]."""

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
) -> tuple[SlotState, SampledArrays, jax.Array | None]:
    """Draws for the first `size` of the scored positions, int32 [max_scored, 4]. state is donated. Never sees KV. Also
    returns what the last of several stages hands back, as `handed_back` has it."""
    state, sampled = draw(model, shapes, head, state, params, hidden[:size], Scored.unpacked(scored[:size]), masks)
    tokens = shapes.row_tokens if shapes.drafting is not None else 0
    back = handed_back(state, tokens) if shapes.stages > 1 else None
    return state, SampledArrays(sampled.tokens, packed_logprobs(sampled.logprobs)), back


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

    def sampled_of(hidden: jax.Array, scored: Scored) -> Sampled:
        own, places = unpack_params(params[scored.slots]), scored.slots * shapes.slot_masks
        logits, asked = model.logits(head, hidden), (scored.positions, scored.targets)
        return sampled_tokens(model, logits, state.counts, scored.slots, own, *asked, masks, places=places)

    assert state.counts is not None
    sampled = (_in_parts if is_by_rows(model) else _at_once)(sampled_of, hidden, scored, shapes.scratch_slot)
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


def is_by_rows(model: LoadedModel) -> bool:
    """Return whether rows are drawn one after another: on one device, a CPU."""
    return model.mesh.size == 1 and platform_of(model.mesh) == "cpu"


SampledOf = Callable[[jax.Array, Scored], Sampled]
"""sampled_of(hidden [S, d], scored of S positions)."""


def _at_once(sampled_of: SampledOf, hidden: jax.Array, scored: Scored, scratch: int) -> Sampled:
    return sampled_of(hidden, scored)


def _in_parts(sampled_of: SampledOf, hidden: jax.Array, scored: Scored, scratch: int) -> Sampled:
    """A few positions after another, up to the last that is used. One program then costs what is used of it,
    whatever it has room for. A part has as many rows as native products read a matrix for at no cost."""
    used = scored.slots != scratch
    total, spare = len(used), -len(used) % _PART
    last = jnp.max(jnp.where(used, jnp.arange(1, total + 1), 0))
    hidden = jnp.pad(jnp.where(used[:, None], hidden, 0), ((0, spare), (0, 0)))
    every = (hidden, scored.padded(spare, scratch))

    def step(part: jax.Array, drawn: Sampled) -> Sampled:
        some = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, part * _PART, _PART), every)
        return jax.tree.map(
            lambda whole, own: jax.lax.dynamic_update_slice_in_dim(whole, own, part * _PART, 0),
            drawn,
            sampled_of(*some),
        )

    none = Sampled(jnp.zeros(total + spare, jnp.int32), no_logprobs(total + spare))
    drawn = jax.lax.fori_loop(0, -(-last // _PART), step, none)
    return jax.tree.map(lambda x: x[:total], drawn)


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
    targets = jnp.full_like(slots, -1) if targets is None else targets
    if is_by_rows(model) and counts is not None:
        return sample_by_rows(logits, counts, slots, own, positions, targets, masks, before, places)
    split = columns(model)
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
