"""`admit`: writes what sequences that enter a slot bring with them into slot state."""

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.layouts import Layout
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.sampler.adjust import set_counts
from jaxinfer.runner.state import PARAM_SCALARS, SlotParams, SlotState
from jaxinfer.runner.vocabulary_shards import WHOLE, columns, over_vocabulary

Tables = tuple[jax.Array, ...]


def admit(
    model: LoadedModel, layout: Layout, state: SlotState, params: SlotParams, tables: Tables, packed: jax.Array
) -> tuple[SlotState, SlotParams, Tables]:
    """One call of `admit`; state, params and tables are donated. packed: int32 [layout.size]."""
    view = layout.views(packed)
    slots = view["slot"]
    tables = tuple(table.at[slots].set(rows) for table, rows in zip(tables, view["tables"], strict=True))
    return _admit_state(model, state, view, slots), _admit_params(params, view, slots), tables


def _admit_state(model: LoadedModel, state: SlotState, view: dict[str, jax.Array], slots: jax.Array) -> SlotState:
    fresh = jnp.where(view["uses_counts"] > 0, slots, state.counts.shape[0] - 1)
    counts = state.counts.at[fresh].set(0)
    counted, token, value = view["counts"].T
    write = over_vocabulary(model, set_counts, (columns(model), *[WHOLE] * 3), columns(model))
    return SlotState(
        length=state.length.at[slots].set(view["length"]),
        last_token=state.last_token.at[slots].set(view["last_token"]),
        remaining=state.remaining.at[slots].set(view["remaining"]),
        counts=write(counts, counted, token, value.astype(jnp.int16)),
    )


def _admit_params(params: SlotParams, view: dict[str, jax.Array], slots: jax.Array) -> SlotParams:
    def bits(name: str, like: jax.Array) -> jax.Array:
        return jax.lax.bitcast_convert_type(view[name], like.dtype)

    new = SlotParams(
        columns={name: bits(name, old) for name, old in params.columns.items()},
        seed=jnp.stack([bits("seed_high", params.seed), bits("seed_low", params.seed)], axis=1),
        **{name: view[name] for name in PARAM_SCALARS},
        stop_ids=view["stop_ids"],
        bias_ids=view["bias_ids"],
        bias_values=bits("bias_values", params.bias_values),
    )
    return jax.tree.map(lambda old, given: old.at[slots].set(given), params, new)
