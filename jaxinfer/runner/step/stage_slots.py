"""Slots as each stage of a pipeline knows them, and their update in the first with what the last has drawn."""

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.layouts import NEWEST
from jaxinfer.runner.state import Slots, SlotState, unpack_newest
from jaxinfer.runner.step.stage import Stage


def own_slots(slots: Slots, stage: Stage) -> Slots:
    """Return what a stage has of slots: the last all; the first newest tokens, as admissions write them, and if rows
    draft what drafts read, as far as it was handed back; all of them block tables."""
    if stage.is_last:
        return slots
    if not stage.is_first or slots.state is None:
        return Slots(None, None, None, slots.tables)
    drafts = slots.state.history is not None
    return Slots(slots.state._replace(counts=None), slots.params if drafts else None, None, slots.tables)


def handed_back(state: SlotState, tokens: int) -> jax.Array:
    """Return what the first stage needs of all slots after a step that drew: int32 [slots], the newest token of each;
    if rows draft, [slots, NEWEST.size + tokens], as in `SlotState`, and after it the last `tokens` tokens of each, the
    newest of them last. tokens: 0 if no row drafts.

    A copy, since the state is donated to the next sample, which does not wait for another host to have read it.
    """
    if not tokens:
        return unpack_newest(state.newest).last_token
    assert state.history is not None
    places = jnp.maximum(_last_places(state.newest, tokens), 0)
    return jnp.concatenate([state.newest, jnp.take_along_axis(state.history, places, axis=1)], axis=1)


def updated(state: SlotState, given: jax.Array, slots: jax.Array, drawn: jax.Array) -> SlotState:
    """Update some slots of the first stage, int32 [rows], with what was handed back: only those whose newest token a
    step has drawn since they were admitted. given: as `handed_back` returns it if rows draft. drawn: bool [rows].

    Between two steps of a row one step has drawn for it, at most as many tokens as are handed back of a slot.
    """
    assert state.history is not None
    rows, drawn = given[slots], drawn[:, None]
    newest, tokens = rows[:, : NEWEST.size], rows[:, NEWEST.size :]
    places = _last_places(newest, tokens.shape[1])
    places = jnp.where(drawn & (places >= 0), places, state.history.shape[1])  # which is nowhere
    return state._replace(
        newest=state.newest.at[slots].set(jnp.where(drawn, newest, state.newest[slots])),
        history=state.history.at[slots[:, None], places].set(tokens, mode="drop"),
    )


def _last_places(newest: jax.Array, tokens: int) -> jax.Array:
    """Positions of the last tokens of slots, int32 [slots, tokens]; below 0 where there are not as many."""
    return unpack_newest(newest).length[:, None] + jnp.arange(1 - tokens, 1, dtype=jnp.int32)
