"""Slot state: what the device remembers of every slot between steps."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.engine.step.layouts import NEWEST, SLOT_PARAMS
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.engine.step.slot_init import NEWEST_SCALARS, PARAM_SCALARS
from jaxinfer.sampling import columns


class SlotState(NamedTuple):
    """State of slots that every drawn token changes. Row `scratch_slot` is written by padding and read by nobody.

    newest: int32 [slots, NEWEST.size], a `Newest` each.
    counts: int16 [slots, vocabulary], packed counts (`SEEN_IN_PROMPT`); kept for slots with penalties, and where tokens
    are drawn.
    history: int32 [slots, max_model_len], the tokens of each slot, if drafts are made from them, and its prediction in
    the last places.
    """

    newest: jax.Array
    counts: jax.Array | None
    history: jax.Array | None = None


class Newest(NamedTuple):
    """The newest token of a slot, int32 each: its position, the token, and how many more the slot may make."""

    length: jax.Array
    last_token: jax.Array
    remaining: jax.Array

    def packed(self) -> jax.Array:
        """int32 [..., NEWEST.size] of fields [...]."""
        return jnp.stack([getattr(self, name) for name in NEWEST_SCALARS], axis=-1)


def unpack_newest(rows: jax.Array) -> Newest:
    """rows: int32 [..., NEWEST.size]; each field is [...]."""
    return Newest(**NEWEST.views(rows))


def end_slots(state: SlotState, slots: jax.Array) -> SlotState:
    """State in which some slots, int32 [S], make no more tokens."""
    column = list(NEWEST_SCALARS).index("remaining")
    return state._replace(newest=state.newest.at[slots, column].set(0))


def set_history(state: SlotState, slots: jax.Array, positions: jax.Array, tokens: jax.Array) -> SlotState:
    """State with some tokens at some positions of slots, int32 [N] each."""
    assert state.history is not None
    return state._replace(history=state.history.at[slots, positions].set(tokens, mode="drop"))


class SlotParams(NamedTuple):
    """Parameters that the sequences of S slots asked for: [S], int32 unless stated otherwise.

    columns: sampling parameters by name (`jaxinfer.sampling.columns`), int32 or float32.
    seed: uint32 [S, 2], high word first. stop_ids: int32 [S, MAX_STOP_TOKEN_IDS], -1 where unused.
    bias_ids: int32, bias_values: float32 [S, MAX_LOGIT_BIAS], id -1 where unused.
    """

    columns: dict[str, jax.Array]
    prompt_len: jax.Array
    seed: jax.Array
    sequence_index: jax.Array
    uses_counts: jax.Array
    constrained: jax.Array
    wants_logprobs: jax.Array
    stop_ids: jax.Array
    bias_ids: jax.Array
    bias_values: jax.Array


def unpack_params(rows: jax.Array) -> SlotParams:
    """rows: int32 [S, SLOT_PARAMS.size], as `admit` wrote them."""
    view = SLOT_PARAMS.views(rows)
    scalars = {name: _bits(view[name], scalar.dtype) for name, scalar in PARAM_SCALARS.items()}
    return SlotParams(
        columns={name: scalars[name] for name in columns()},
        seed=jnp.stack([scalars["seed_high"], scalars["seed_low"]], axis=1),
        **{name: scalars[name] for name in SlotParams._fields if name in scalars},
        stop_ids=view["stop_ids"],
        bias_ids=view["bias_ids"],
        bias_values=_bits(view["bias_values"], "float32"),
    )


def stop_ids(params: jax.Array, slots: jax.Array) -> jax.Array:
    """Return the stop ids of some slots, int32 [S] -> [S, MAX_STOP_TOKEN_IDS]. params: packed, of all slots."""
    return SLOT_PARAMS.views(params)["stop_ids"][slots]


def _bits(words: jax.Array, dtype: str) -> jax.Array:
    return jax.lax.bitcast_convert_type(words, jnp.dtype(dtype))


def _free_params() -> np.ndarray:
    """The row of a slot that nobody has: greedy, nothing asked for."""
    row = SLOT_PARAMS.new()
    view = SLOT_PARAMS.views(row)
    for name, scalar in PARAM_SCALARS.items():
        view[name].view(scalar.dtype)[...] = scalar.neutral
    view["stop_ids"][:] = view["bias_ids"][:] = -1
    return row


class Slots(NamedTuple):
    """Everything that the device remembers of slots.

    params: int32 [slots, SLOT_PARAMS.size], what they ask for. masks: int32 [slots · slot_masks, mask_words], which
    tokens they may draw next, where they are constrained. tables: int32 [slots, blocks_per_row] a KV group; block 0 is
    scratch. A stage of a pipeline has None for what it does not need (`own_slots`).
    """

    state: SlotState | None
    params: jax.Array | None
    masks: jax.Array | None
    tables: tuple[jax.Array, ...]


def zero_slots(shapes: EngineShapes, columns: int) -> Slots:
    """Slots that nobody has.

    Those of all shards, one after another, each with its scratch slot. columns: of counts, one for each row of the
    head.
    """
    slots = shapes.num_slots * shapes.shards
    state = SlotState(
        newest=jnp.zeros((slots, NEWEST.size), jnp.int32),
        counts=jnp.zeros((slots, columns), jnp.int16),
        history=None if shapes.drafting is None else jnp.zeros((slots, shapes.max_model_len), jnp.int32),
    )
    tables = tuple(jnp.zeros((slots, shapes.blocks_per_row), jnp.int32) for _ in shapes.groups)
    params = jnp.broadcast_to(_free_params(), (slots, SLOT_PARAMS.size))
    return Slots(state, params, jnp.zeros((slots * shapes.slot_masks, shapes.mask_words), jnp.int32), tables)
