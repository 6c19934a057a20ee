"""`admit`: writes what sequences that enter a slot bring with them into slot state."""

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.layouts import SLOT_PARAMS, Layout
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.sampler.adjust import set_counts
from jaxinfer.runner.state import SlotState
from jaxinfer.runner.vocabulary_shards import WHOLE, columns, over_vocabulary

Tables = tuple[jax.Array, ...]


def admit(
    model: LoadedModel, layout: Layout, state: SlotState, params: jax.Array, tables: Tables, packed: jax.Array
) -> tuple[SlotState, jax.Array, Tables]:
    """One call of `admit`; state, params and tables are donated. packed: int32 [layout.size]."""
    view = layout.views(packed)
    slots = view["slot"]
    tables = tuple(table.at[slots].set(rows) for table, rows in zip(tables, view["tables"], strict=True))
    state = state._replace(
        newest=state.newest.at[slots].set(view["newest"]), counts=_admit_counts(model, state.counts, view)
    )
    return state, params.at[slots].set(view["params"]), tables


def _admit_counts(model: LoadedModel, counts: jax.Array, view: dict[str, jax.Array]) -> jax.Array:
    uses_counts = SLOT_PARAMS.views(view["params"])["uses_counts"]
    fresh = jnp.where(uses_counts > 0, view["slot"], counts.shape[0] - 1)
    slots, tokens, values = view["counts"].T
    write = over_vocabulary(model, set_counts, (columns(model), *[WHOLE] * 3), columns(model))
    return write(counts.at[fresh].set(0), slots, tokens, values.astype(jnp.int16))
