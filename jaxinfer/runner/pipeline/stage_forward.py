"""The forward pass of one stage of a pipeline: its layers over a step's tokens."""

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.forward import Arrays, Forward, ForwardPrograms, Scored, Step, drawn, updated_tables
from jaxinfer.runner.pipeline.stage import Stage
from jaxinfer.runner.state import unpack_newest


class StageForward:
    """As `ForwardPrograms`, of a stage.

    Positions come with the packed step: rows gain a token by each step that draws for them, so the host knows them. The
    first stage reads newest tokens of slots twice: `newest`, int32 [slots, NEWEST.size], which admissions have written,
    and `given`, int32 [slots], from the last stage after a step that has drawn all that this one reads. Every other
    stage is `given` hidden states, [T, d].
    """

    def __init__(self, model: LoadedModel, shapes: EngineShapes, layouts: Layouts, stage: Stage):
        self._forward = ForwardPrograms(model, shapes, layouts)
        self._layouts = layouts
        self._stage = stage

    def decode(
        self,
        rows: int,
        weights: Arrays,
        kv: Arrays,
        tables: Arrays,
        newest: jax.Array | None,
        given: jax.Array,
        load: jax.Array | None,
        packed: jax.Array,
    ) -> Forward:
        """One token a row."""
        view = self._layouts.decode(rows).views(packed)
        tables, slots = updated_tables(tables, view, self._stage.groups), view["slots"]
        tokens = given if newest is None else _newest_tokens(newest, given, view)
        step = self._forward.single(tables, slots, view["starts"], tokens)
        hidden, kv, load, _ = self._forward.layers(weights, kv, load, step)
        return self._finish(weights, hidden, drawn(slots, step), kv, tables, load)

    def mixed(
        self,
        tokens: int,
        weights: Arrays,
        kv: Arrays,
        tables: Arrays,
        newest: jax.Array | None,
        given: jax.Array,
        load: jax.Array | None,
        packed: jax.Array,
    ) -> Forward:
        """Rows of any length."""
        view = self._layouts.mixed(tokens).views(packed)
        tables = updated_tables(tables, view, self._stage.groups)
        own = jnp.zeros_like(view["slots"]) if newest is None else _newest_tokens(newest, given, view)
        step = self._forward.unpack(view, tables, view["starts"], own)
        if newest is None:
            step = step._replace(tokens=given)
        hidden, kv, load, _ = self._forward.layers(weights, kv, load, step)
        hidden, scored = self._scored(view, step, hidden)
        return self._finish(weights, hidden, scored, kv, tables, load)

    def _scored(self, view: dict[str, jax.Array], step: Step, hidden: jax.Array) -> tuple[jax.Array, Scored | None]:
        return self._forward.scored(view, step, hidden) if self._stage.is_last else (hidden, None)

    def _finish(
        self,
        weights: Arrays,
        hidden: jax.Array,
        scored: Scored | None,
        kv: Arrays,
        tables: Arrays,
        load: jax.Array | None,
    ) -> Forward:
        if not self._stage.is_last or scored is None:
            return Forward(kv, tables, load, hidden, None)
        return self._forward.finish(weights, hidden, scored, kv=kv, tables=tables, load=load)


def _newest_tokens(admitted: jax.Array, drawn: jax.Array, view: dict[str, jax.Array]) -> jax.Array:
    """The newest token of each row, int32 [rows]: one that was drawn, or that the sequence came with."""
    slots = view["slots"]
    return jnp.where(view["drawn"] > 0, drawn[slots], unpack_newest(admitted).last_token[slots])
