"""A step that drafts, over the stages of a pipeline: the first drafts, all compute them, and the last accepts some.

The first stage drafts since it is what begins a step: drafts of the last stage would wait there for all steps before
them. Counts of tokens are the last stage's alone: drafts know no penalties for tokens before them, which makes fewer of
them right, and never changes what is drawn.
"""

from typing import Any, NamedTuple

import jax

from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.runner.forward import Arrays, ForwardPrograms, short_rows, updated_tables
from jaxinfer.runner.pipeline.known_slots import KnownSlots, handed_back, updated
from jaxinfer.runner.pipeline.stage import Stage
from jaxinfer.runner.pipeline.stage_forward import Passed, StageForwarded
from jaxinfer.runner.speculate import Accepted, Drafted, SpeculateProgram
from jaxinfer.runner.state import SlotState


class StageDrafted(NamedTuple):
    """Results of `draft`: kv, tables and known are its donated arguments; drafted is a packed `Drafted`."""

    kv: Arrays
    tables: Arrays
    known: KnownSlots
    drafted: jax.Array


class StageSpeculate:
    """The programs of one stage."""

    def __init__(
        self,
        shapes: EngineShapes,
        layouts: Layouts,
        stage: Stage,
        forward: ForwardPrograms,
        speculate: SpeculateProgram,
    ):
        self._shapes = shapes
        self._layouts = layouts
        self._stage = stage
        self._forward = forward
        self._speculate = speculate

    def draft(
        self,
        rows: int,
        weights: Arrays,
        head: Arrays,
        kv: Arrays,
        tables: Arrays,
        known: KnownSlots,
        given: jax.Array,
        packed: jax.Array,
    ) -> StageDrafted:
        """Draft in the first stage. given: as `handed_back` returns it. weights, head: the draft model's included."""
        view = self._layouts.burst(rows).views(packed)
        known = updated(known, given, view["slots"], view["drawn"] > 0)
        no_counts: Any = None
        state = SlotState(known.newest, no_counts, known.history)
        kv, tables, drafted = self._speculate.draft(rows, weights, head, kv, tables, state, known.params, packed)
        return StageDrafted(kv, tables, known, drafted)

    def verify(
        self,
        rows: int,
        weights: Arrays,
        kv: Arrays,
        tables: Arrays,
        given: jax.Array | Passed,
        load: jax.Array | None,
        packed: jax.Array,
    ) -> StageForwarded:
        """The forward pass over each row's newest token and its drafts. given: of the first stage packed `Drafted`."""
        view = self._layouts.burst(rows).views(packed)
        passed = given if isinstance(given, Passed) else None
        drafted = Drafted.unpacked(given if passed is None else passed.rows)
        if passed is not None:  # the first stage has done so, to draft
            tables = updated_tables(tables, view, self._stage.groups)
        own = tuple(table[view["slots"]] for table in tables)
        step = short_rows(drafted.tokens, drafted.length, drafted.counts, own)
        if passed is not None:
            step = step._replace(tokens=passed.hidden)
        hidden, kv, load, _ = self._forward.layers(weights, kv, load, step)
        hidden = self._forward.normed(weights, hidden) if self._stage.is_last else hidden
        return StageForwarded(kv, tables, load, hidden)

    def accept(
        self,
        rows: int,
        head: Arrays,
        state: SlotState,
        params: jax.Array,
        masks: jax.Array,
        hidden: jax.Array,
        drafted: jax.Array,
        packed: jax.Array,
        legal: jax.Array,
    ) -> tuple[Accepted, jax.Array]:
        """Accept drafts in the last stage. Also returns the first stage's input, as `handed_back` does."""
        given = self._speculate.accept(rows, head, state, params, masks, hidden, drafted, packed, legal)
        return given, handed_back(given.state, self._shapes.burst)
