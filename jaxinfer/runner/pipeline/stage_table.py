"""StageTable: the programs of one stage of a pipeline."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.engine.step.buckets import make_buckets
from jaxinfer.engine.step.layouts import NEWEST, Layouts
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.admit import Tables, admit_tables
from jaxinfer.runner.data_shards import WHOLE, kv_specs
from jaxinfer.runner.pipeline.known_slots import KnownSlots, handed_back
from jaxinfer.runner.pipeline.stage import Stage
from jaxinfer.runner.pipeline.stage_forward import Passed, StageForward, StageForwarded
from jaxinfer.runner.pipeline.stage_speculate import StageDrafted, StageSpeculate
from jaxinfer.runner.program_table import Program, ProgramTable, like
from jaxinfer.runner.sample import SampledArrays
from jaxinfer.runner.speculate import Accepted
from jaxinfer.runner.state import Slots, SlotState, unpack_newest


class StageTable(ProgramTable):
    """Programs of one stage. `sample`, `masks` and `accept` belong to the last stage alone, which has all of a slot's
    state. The first stage has newest tokens from admissions; if rows draft, it has `draft`, and `KnownSlots`. A step
    that drafts is never one program."""

    def __init__(self, model: LoadedModel, shapes: EngineShapes, stage: Stage):
        """shapes: of the engine."""
        own = stage.shapes(shapes)
        self._stage = stage
        super().__init__(model, own, Layouts(shapes), stage.groups)
        drafter, speculate = self._drafter if stage.is_first else None, self._speculate
        self._stage_forward = StageForward(self._layouts, stage, self._forward, drafter)
        self._stage_speculate = None
        if speculate is not None:
            self._stage_speculate = StageSpeculate(own, self._layouts, stage, self._forward, speculate)
        named = ("admit", "mixed", "decode", "copies", *(("sample", "masks") if stage.is_last else ()))
        has_history = self._drafts and (stage.is_first or stage.is_last)
        self.names = (
            *(name for name in self.names if name[0] in named),
            *((kind, size) for size in reversed(make_buckets(own).rows) for kind in self._drafting_kinds),
            *(name for name in self.names if name[0] == "history" and has_history),
        )

    @property
    def _drafts(self) -> bool:
        return self._shapes.drafting is not None

    @property
    def _drafting_kinds(self) -> tuple[str, ...]:
        """Kinds of the programs by which a step drafts."""
        if not self._drafts:
            return ()
        return ("draft",) * self._stage.is_first + ("verify",) + ("accept",) * self._stage.is_last

    def slots(self) -> tuple[jax.ShapeDtypeStruct | KnownSlots | None, tuple[jax.ShapeDtypeStruct, ...]]:
        """Return the shapes of the stage's `own_slots`."""
        return self.own_slots(self._slots())

    def own_slots(self, slots: Slots) -> Any:
        """Return the slots of a stage that is not the last: known slots, in the first one alone, and block tables."""
        if not self._stage.is_first:
            return None, slots.tables
        newest, history = slots.state.newest, slots.state.history
        return newest if history is None else KnownSlots(newest, history, slots.params), slots.tables

    def given(self, size: int) -> Any:
        """Return the shapes of the stage's input for a step of `size` tokens, or rows, a shard."""
        if not self._stage.is_first:
            hidden: Any = self._by_row(size, self._model.config.hidden_size, dtype=self._model.dtype)
            rows: Any = self._by_row(size) if self._drafts else None
            return Passed(hidden, rows)
        slots = self._shapes.num_slots
        return self._by_row(slots, NEWEST.size + self._shapes.burst) if self._drafts else self._by_row(slots)

    def _by_row(self, rows: int, *more: int, dtype: Any = np.int32) -> jax.ShapeDtypeStruct:
        """An array over rows, or slots, of all shards."""
        return jax.ShapeDtypeStruct((rows * self._shapes.shards, *more), jnp.dtype(dtype), sharding=self._by_rows)

    def _sample(self, size: int) -> Program:
        """Gives what the first stage is handed, too: newest tokens of all slots, int32 [slots], or where rows draft
        what `handed_back` has. A copy, since the state is donated to the next sample, which does not wait for another
        host to have read it."""
        whole, tokens = super()._sample(size), self._shapes.burst if self._drafts else 0

        def sample(*arguments: Any) -> tuple[SlotState, SampledArrays, jax.Array]:
            state, sampled = whole.function(*arguments)
            return state, sampled, back(state)

        def newest(state: SlotState) -> jax.Array:
            return handed_back(state, tokens) if tokens else unpack_newest(state.newest).last_token

        back = self._over_data(newest, (self._own,), self._own)
        return whole._replace(function=sample, out_shardings=(*whole.out_shardings, self._by_rows))

    def _admit(self) -> Program:
        if self._stage.is_last:
            return super()._admit()
        layout, (known, tables) = self._layouts.admit, self.slots()

        def admit(known: Any, tables: Tables, packed: jax.Array) -> tuple[Any, Tables]:
            newest = known.newest if isinstance(known, KnownSlots) else known
            newest, tables = admit_tables(layout, self._groups, newest, tables, packed)
            if not isinstance(known, KnownSlots):
                return newest, tables
            view = layout.views(packed)
            return known._replace(newest=newest, params=known.params.at[view["slot"]].set(view["params"])), tables

        function = self._over_data(admit, (self._own,) * 3, self._own)
        out = jax.tree.map(lambda x: x.sharding, (known, tables))
        return Program(function, (known, tables, self._packed(layout.size)), (0, 1), out)

    @property
    def _remembering(self) -> Any:
        return super()._remembering if self._stage.is_last else self.slots()[0]

    def _forward_program(self, kind: str, size: int) -> Program:
        decode = kind == "decode"
        layout = self._layouts.decode(size) if decode else self._layouts.mixed(size)
        function = self._stage_forward.decode if decode else self._stage_forward.mixed
        rows = size if decode else min(size, self._shapes.max_num_seqs)
        (known, tables), kv, given = self.slots(), self._kv(), self.given(size)
        if isinstance(given, Passed) and given.rows is not None:
            given = given._replace(rows=self._by_row(rows))
        weights = self._model.step_weights if decode else self._model.weights_with_draft
        arguments = (tuple(map(like, weights)), kv, tables, known, given, self._load(), self._packed(layout.size))
        is_last, updates = self._stage.is_last, isinstance(known, KnownSlots)
        return self._step(partial(function, size), arguments, (1, 2, 3) if updates else (1, 2), is_last, updates)

    def _verify(self, size: int) -> Program:
        assert self._stage_speculate is not None
        kv, tables, drafted = self._kv(), self._slots().tables, self._drafted(size)
        given: Any = drafted
        if not self._stage.is_first:
            given = self.given(size * self._shapes.burst)._replace(rows=drafted)
        weights, packed = tuple(map(like, self._model.weights)), self._packed(self._layouts.burst(size).size)
        arguments = (weights, kv, tables, given, self._load(), packed)
        return self._step(partial(self._stage_speculate.verify, size), arguments, (1, 2))

    def _step(
        self,
        function: Any,
        arguments: tuple[Any, ...],
        donated: tuple[int, ...],
        scored: bool = False,
        updates_known: bool = False,
    ) -> Program:
        """A forward pass, whose first arguments are weights, KV blocks and block tables, and the last ones the load of
        experts and a packed step. scored: whether it gives what is scored; updates_known: and `KnownSlots`."""
        kv, tables, *between = arguments[1:-2]
        blocks, own = kv_specs(self._model), self._own
        given: list[Any] = [blocks, own, WHOLE, own, own if scored else None, *[own if updates_known else None] * 2]
        taken = (WHOLE, blocks, *[own] * (1 + len(between)), WHOLE, own)
        split = self._over_data(self._counting(function), taken, StageForwarded(*given))
        shardings: list[Any] = [jax.tree.map(lambda x: x.sharding, kept) for kept in (kv, tables)]
        shardings += [self._replicated, self._by_rows, self._by_rows if scored else None]
        if updates_known:
            shardings += [jax.tree.map(lambda x: x.sharding, between[0]), self._by_rows]
        return Program(split, arguments, donated, StageForwarded(*shardings))

    def _draft(self, size: int) -> Program:
        assert self._stage_speculate is not None
        (known, tables), kv, own, blocks = self.slots(), self._kv(), self._own, kv_specs(self._model)
        packed = self._packed(self._layouts.burst(size).size)
        results: list[Any] = [blocks, own, own, own]
        function = self._over_data(
            partial(self._stage_speculate.draft, size), (WHOLE, WHOLE, blocks, *[own] * 4), StageDrafted(*results)
        )
        shardings: list[Any] = [*jax.tree.map(lambda x: x.sharding, (kv, tables, known)), self._by_rows]
        arguments = (*self._with_draft, kv, tables, known, self.given(0), packed)
        return Program(function, arguments, (2, 3, 4), StageDrafted(*shardings))

    def _accept(self, size: int) -> Program:
        assert self._stage_speculate is not None
        whole, own = super()._accept(size), self._own
        given: list[Any] = [own] * 4
        function = self._over_data(
            partial(self._stage_speculate.accept, size), (WHOLE, *[own] * 7), (Accepted(*given), own)
        )
        return whole._replace(function=function, out_shardings=(whole.out_shardings, self._by_rows))
