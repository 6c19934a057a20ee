"""Slot state: what the device remembers of every slot between steps."""

from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.engine.step.slot_init import SLOT_SCALARS
from jaxinfer.sampling import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS, columns


class SlotState(NamedTuple):
    """What every drawn token changes. Row `scratch_slot` is written by padding and read by nobody.

    length: int32 [slots], position of the newest token. last_token: int32 [slots], that token.
    remaining: int32 [slots], tokens it may still make.
    counts: int16 [slots, vocabulary], packed counts (`SEEN_IN_PROMPT`); kept for slots with penalties.
    """

    length: jax.Array
    last_token: jax.Array
    remaining: jax.Array
    counts: jax.Array


class SlotParams(NamedTuple):
    """What a sequence asked for, as `admit` wrote it: [slots], int32 where nothing else is said.

    columns: sampling parameters by name (`jaxinfer.sampling.columns`), int32 or float32.
    seed: uint32 [slots, 2], high word first. stop_ids: int32 [slots, MAX_STOP_TOKEN_IDS], -1 where unused.
    bias_ids: int32, bias_values: float32 [slots, MAX_LOGIT_BIAS], id -1 where unused.
    """

    columns: dict[str, jax.Array]
    prompt_len: jax.Array
    seed: jax.Array
    sequence_index: jax.Array
    uses_counts: jax.Array
    wants_logprobs: jax.Array
    stop_ids: jax.Array
    bias_ids: jax.Array
    bias_values: jax.Array


PARAM_SCALARS = [name for name in SLOT_SCALARS if name in SlotParams._fields]
"""Scalars that SlotParams has as they are sent."""


def _zero_params(shapes: EngineShapes) -> SlotParams:
    """Parameters of slots that nobody has: greedy, nothing asked for."""
    slots = shapes.num_slots * shapes.shards

    def scalars(names: Iterable[str]) -> dict[str, jax.Array]:
        return {name: jnp.full(slots, SLOT_SCALARS[name].neutral, SLOT_SCALARS[name].dtype) for name in names}

    return SlotParams(
        columns=scalars(columns()),
        seed=jnp.stack(list(scalars(("seed_high", "seed_low")).values()), axis=1),
        **scalars(PARAM_SCALARS),
        stop_ids=jnp.full((slots, MAX_STOP_TOKEN_IDS), -1, jnp.int32),
        bias_ids=jnp.full((slots, MAX_LOGIT_BIAS), -1, jnp.int32),
        bias_values=jnp.zeros((slots, MAX_LOGIT_BIAS), jnp.float32),
    )


def zero_slots(shapes: EngineShapes, columns: int) -> tuple[SlotState, SlotParams, tuple[jax.Array, ...]]:
    """Slots that nobody has, and their block tables: int32 [slots, blocks_per_row] a KV group; block 0 is scratch.

    Those of all shards, one after another, each with its scratch slot. columns: of counts, one for each row of the
    head.
    """
    slots = shapes.num_slots * shapes.shards
    state = SlotState(
        length=jnp.zeros(slots, jnp.int32),
        last_token=jnp.zeros(slots, jnp.int32),
        remaining=jnp.zeros(slots, jnp.int32),
        counts=jnp.zeros((slots, columns), jnp.int16),
    )
    tables = tuple(jnp.zeros((slots, shapes.blocks_per_row), jnp.int32) for _ in shapes.groups)
    return state, _zero_params(shapes), tables
