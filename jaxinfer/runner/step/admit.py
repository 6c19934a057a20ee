"""`admit`: writes what sequences that enter a slot bring with them into slot state."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.layouts import SLOT_PARAMS, Layout
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.sampler.adjust import set_counts
from jaxinfer.runner.state import SlotState
from jaxinfer.runner.step.vocabulary_shards import WHOLE, columns, over_vocabulary

Tables = tuple[jax.Array, ...]


def admit(
    model: LoadedModel,
    layout: Layout,
    groups: Sequence[int],
    state: SlotState | None,
    params: jax.Array | None,
    tables: Tables,
    packed: jax.Array,
) -> tuple[SlotState | None, jax.Array | None, Tables]:
    """One call of `admit`; state, params and tables are donated, and None as in `Slots`. groups: of which of the
    engine's KV groups the tables are. packed: int32 [layout.size]."""
    view = layout.views(packed)
    slots, rows = view["slot"], view["tables"]
    tables = tuple(table.at[slots].set(rows[group]) for table, group in zip(tables, groups, strict=True))
    if state is not None:
        newest = state.newest.at[slots].set(view["newest"])
        counts = None if state.counts is None else _admit_counts(model, state.counts, view)
        state = state._replace(newest=newest, counts=counts)
    return state, None if params is None else params.at[slots].set(view["params"]), tables


def _admit_counts(model: LoadedModel, counts: jax.Array, view: dict[str, jax.Array]) -> jax.Array:
    uses_counts = SLOT_PARAMS.views(view["params"])["uses_counts"]
    fresh = jnp.where(uses_counts > 0, view["slot"], counts.shape[0] - 1)
    slots, tokens, values = view["counts"].T
    write = over_vocabulary(model, set_counts, (columns(model), *[WHOLE] * 3), columns(model))
    return write(counts.at[fresh].set(0), slots, tokens, values.astype(jnp.int16))
