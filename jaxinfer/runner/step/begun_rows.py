"""Beginnings of a step in each stage: where its rows have their first positions and their newest tokens from."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer.runner.state import SlotState, unpack_newest
from jaxinfer.runner.step.stage import Stage
from jaxinfer.runner.step.stage_slots import updated

View = dict[str, jax.Array]
"""Sections of a packed step."""


class Passed(NamedTuple):
    """Input of a stage that is not the first. hidden: [T, d]. rows: int32, if rows draft, the first stage's facts about
    the step's rows: packed `Drafted` for a step that drafts, else each row's first position, [rows]."""

    hidden: jax.Array
    rows: jax.Array | None = None


Given = jax.Array | Passed | None
"""Input of a step from other stages: of the first what was handed back, as `handed_back` returns it, after a step that
has drawn all that this one reads; of others `Passed`; None where one stage is all."""


class Begun(NamedTuple):
    """Rows of a step. start: int32 [R], each row's first position. tokens: its newest token, int32 [R]; in a stage that
    is not the first hidden states, [T, d]. state: slots as they are now, where they have changed; rows: of `Passed`."""

    start: jax.Array
    tokens: jax.Array
    state: SlotState | None = None
    rows: jax.Array | None = None


Begin = Callable[[SlotState | None, Given, View], Begun]
"""begin(state, given, view of the packed step). state: what the stage has of slots' state; None for nothing."""


def begin_of(stage: Stage, drafts: bool) -> Begin:
    """Return how steps begin in a stage. drafts: whether rows draft."""
    if stage.count == 1:
        return _of_slots
    if not stage.is_first:
        return _passed
    return _of_known_slots if drafts else _of_host


def held_rows(view: View) -> jax.Array | None:
    """Tell which rows have one token, which the device holds, bool [R]; None for all, as in a decode step."""
    return jnp.arange(len(view["slots"])) < view["num_decode"] if "num_decode" in view else None


def _of_slots(state: SlotState | None, given: Given, view: View) -> Begun:
    """One stage draws, and so knows, all tokens."""
    assert state is not None
    newest, held, slots = unpack_newest(state.newest), held_rows(view), view["slots"]
    length = newest.length[slots]
    return Begun(length if held is None else jnp.where(held, length, view["starts"]), newest.last_token[slots])


def _of_host(state: SlotState | None, given: Given, view: View) -> Begun:
    """Positions come with the step: rows gain a token by each step that draws for them, so the host knows them."""
    assert state is not None
    assert isinstance(given, jax.Array)
    slots = view["slots"]
    known = unpack_newest(state.newest).last_token[slots]
    return Begun(view["starts"], jnp.where(view["drawn"] > 0, given[slots], known))


def _of_known_slots(state: SlotState | None, given: Given, view: View) -> Begun:
    """If rows draft, the host knows positions too late."""
    assert state is not None
    assert isinstance(given, jax.Array)
    slots, drawn, held = view["slots"], view["drawn"] > 0, held_rows(view)
    state = updated(state, given, slots, drawn if held is None else held & drawn)
    newest = unpack_newest(state.newest[slots])
    start = newest.length if held is None else jnp.where(held, newest.length, view["starts"])
    return Begun(start, newest.last_token, state, start)


def _passed(state: SlotState | None, given: Given, view: View) -> Begun:
    assert isinstance(given, Passed)
    return Begun(view["starts"] if given.rows is None else given.rows, given.hidden)
