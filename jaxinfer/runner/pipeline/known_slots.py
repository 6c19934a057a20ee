"""Slots as the first stage of a pipeline that drafts knows them, and their update with what the last one has drawn."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.layouts import NEWEST
from jaxinfer.runner.state import SlotState, unpack_newest


class KnownSlots(NamedTuple):
    """newest, history: as in `SlotState`, as far as they were handed back. params: as in `Slots`."""

    newest: jax.Array
    history: jax.Array
    params: jax.Array


def handed_back(state: SlotState, tokens: int) -> jax.Array:
    """Return what the first stage needs of all slots after a step that drew, int32 [slots, NEWEST.size + tokens]: the
    newest token of each, as in `SlotState`, and its last `tokens` tokens, the newest of them last."""
    assert state.history is not None
    places = jnp.maximum(_last_places(state.newest, tokens), 0)
    return jnp.concatenate([state.newest, jnp.take_along_axis(state.history, places, axis=1)], axis=1)


def updated(known: KnownSlots, given: jax.Array, slots: jax.Array, drawn: jax.Array) -> KnownSlots:
    """Update some slots, int32 [rows], with what was handed back: only those whose newest token a step has drawn since
    they were admitted. given: as `handed_back` returns it. drawn: bool [rows].

    Between two steps of a row one step has drawn for it, at most as many tokens as are handed back of a slot.
    """
    rows, drawn = given[slots], drawn[:, None]
    newest, tokens = rows[:, : NEWEST.size], rows[:, NEWEST.size :]
    places = _last_places(newest, tokens.shape[1])
    places = jnp.where(drawn & (places >= 0), places, known.history.shape[1])  # which is nowhere
    return known._replace(
        newest=known.newest.at[slots].set(jnp.where(drawn, newest, known.newest[slots])),
        history=known.history.at[slots[:, None], places].set(tokens, mode="drop"),
    )


def _last_places(newest: jax.Array, tokens: int) -> jax.Array:
    """Positions of the last tokens of slots, int32 [slots, tokens]; below 0 where there are not as many."""
    return unpack_newest(newest).length[:, None] + jnp.arange(1 - tokens, 1, dtype=jnp.int32)
