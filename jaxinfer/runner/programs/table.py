"""ProgramTable: what each program is, and the shapes and shardings of all that it takes and gives."""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from jaxinfer.engine.step.buckets import Buckets, make_buckets
from jaxinfer.engine.step.layouts import NEWEST, Layouts
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.drafting.drafters import make_drafter
from jaxinfer.runner.drafting.speculate import AcceptedDrafts, SpeculateProgram, drafted_width
from jaxinfer.runner.experts.load import load_shape
from jaxinfer.runner.sampler.masks import set_masks
from jaxinfer.runner.state import SlotState, set_history, zero_slots
from jaxinfer.runner.step.admit import admit
from jaxinfer.runner.step.begun_rows import Passed
from jaxinfer.runner.step.data_shards import WHOLE, added_up, kv_arrays, kv_specs, over_data, rows
from jaxinfer.runner.step.forward import Arrays, Forward, ForwardPrograms, copied_blocks
from jaxinfer.runner.step.multi_step import MultiStepProgram, RowTokens
from jaxinfer.runner.step.sample import sample
from jaxinfer.runner.step.stage import Stage, whole_stage
from jaxinfer.runner.step.stage_slots import own_slots
from jaxinfer.runner.step.vocabulary_shards import slot_shardings

Name = tuple[str, int]
"""A program: ("admit", 0), ("decode", rows), ("mixed", tokens), ("sample", positions), ("masks", rows),
("copies", 0), ("multi_step", rows), ("speculate", rows), ("draft", rows), ("verify", rows), ("accept", rows), or
("history", tokens)."""


class Program(NamedTuple):
    """A function to compile, the shapes and shardings of its arguments, and which of them are donated."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...]
    out_shardings: Any


class ProgramTable:
    """The programs of one model and engine, or of one stage, by name.

    Tokens are read in the first stage, which drafts, and drawn in the last. A step that drafts is one program only
    where one stage is all; of several each has the drafts' forward pass (`verify`).
    """

    def __init__(self, model: LoadedModel, shapes: EngineShapes, stage: Stage | None = None):
        """shapes: of the engine. stage: None: the model is whole."""
        self._model = model
        self._stage = stage = stage or whole_stage(shapes)
        self._layouts = Layouts(shapes)
        self._shapes = shapes = stage.shapes(shapes)
        self._buckets = make_buckets(shapes)
        drafter = make_drafter(model, shapes, self._layouts) if stage.is_first else None
        reading = (None, None) if drafter is None else (drafter.follow, drafter.features)
        self._forward = ForwardPrograms(model, shapes, self._layouts, *reading, stage)
        own = (model, shapes, self._layouts, self._forward)
        self._multi_step = MultiStepProgram(*own)
        self._speculate = SpeculateProgram(*own, drafter, stage)
        self._own = rows(model.mesh)
        self._replicated, self._by_rows = NamedSharding(model.mesh, WHOLE), NamedSharding(model.mesh, self._own)
        self._results: list[Any] = [self._replicated, self._by_rows, self._by_rows]

    @property
    def names(self) -> tuple[Name, ...]:
        """All of them, the largest of a kind first."""
        return self.names_of(self._buckets)

    def names_of(self, buckets: Buckets) -> tuple[Name, ...]:
        """Return the programs of some sizes."""
        stage, drafts = self._stage, self._shapes.drafting is not None
        whole = stage.count == 1
        checked = buckets.checked if whole else buckets.rows if drafts else ()
        checking = ("draft",) * stage.is_first + ("verify",) + ("accept",) * stage.is_last
        return (
            ("admit", 0),
            *(("mixed", size) for size in reversed(buckets.tokens)),
            *(("decode", size) for size in reversed(buckets.rows)),
            *(("sample", size) for size in reversed(buckets.scored) if stage.is_last),
            *(("masks", size) for size in reversed(buckets.masks) if stage.is_last),
            ("copies", 0),
            *(("multi_step", size) for size in reversed(buckets.rows) if whole and self._shapes.decode_steps > 1),
            *(("speculate", size) for size in reversed(buckets.rows) if whole and drafts),
            *((kind, size) for size in reversed(checked) for kind in checking),
            *(("history", size) for size in reversed(buckets.history) if stage.is_first or stage.is_last),
        )

    def __getitem__(self, name: Name) -> Program:
        kind, size = name
        if kind == "admit":
            return self._admit()
        if kind == "sample":
            return self._sample(size)
        if kind == "masks":
            return self._masks(size)
        if kind == "copies":
            return self._copies()
        if kind == "multi_step":
            return self._several(self._multi_step, size, [])
        if kind == "speculate":
            return self._several(self._speculate, size, [self._by_rows])
        if kind == "history":
            return self._history(size)
        if kind == "draft":
            return self._draft(size)
        if kind == "verify":
            return self._verify(size)
        if kind == "accept":
            return self._accept(size)
        return self._forward_program(kind, size)

    def _admit(self) -> Program:
        layout = self._layouts.admit
        state, params, _, tables = self.slots
        arguments = (state, params, tables, self._packed(layout.size))
        out = _places((state, params, tables))
        function = self._over_data(partial(admit, self._model, layout, self._stage.groups), (self._own,) * 4, self._own)
        return Program(function, arguments, (0, 1, 2), out)

    def _forward_program(self, kind: str, size: int) -> Program:
        decode = kind == "decode"
        layout = self._layouts.decode(size) if decode else self._layouts.mixed(size)
        function = self._forward.decode if decode else self._forward.mixed
        kv, tables, state = self._kv(), self.slots.tables, self.read_state(kind, self.slots.state)
        given = self.given(size)
        if isinstance(given, Passed) and given.rows is not None:
            given = given._replace(rows=self._by_row(size if decode else min(size, self._shapes.max_num_seqs)))
        weights = self._model.step_weights if decode else self._model.weights_with_draft
        arguments = (tuple(map(like, weights)), kv, tables, state, given, self._load(), self._packed(layout.size))
        results: list[Any] = [kv_specs(self._model), self._own, WHOLE, *[self._own] * 4]
        function = self._counting(partial(function, size))
        taken = (WHOLE, kv_specs(self._model), *[self._own] * 3, WHOLE, self._own)
        split = self._over_data(function, taken, Forward(*results))
        out: list[Any] = [_places(kv), _places(tables), *self._results, *[self._by_rows] * 2]
        return Program(split, arguments, (1, 2, 3) if self._updates_state else (1, 2), Forward(*out))

    def read_state(self, kind: str, state: SlotState | None) -> SlotState | None:
        """Return what a forward pass, `decode` or `mixed`, reads of slots' state. It is donated where the first of
        several stages updates it."""
        if state is None or not self._stage.is_first:
            return None
        reads_history = self._updates_state or (kind == "mixed" and self._model.taps)
        return SlotState(state.newest, None, state.history if reads_history else None)

    @property
    def _updates_state(self) -> bool:
        return self._shapes.drafting is not None and self._stage.is_first and not self._stage.is_last

    def given(self, size: int) -> Any:
        """Return the shapes of the stage's `Given` for a step of `size` tokens, or rows, a shard."""
        if self._stage.count == 1:
            return None
        drafts = self._shapes.drafting is not None
        if not self._stage.is_first:
            hidden: Any = self._by_row(size, self._model.config.hidden_size, dtype=self._model.dtype)
            return Passed(hidden, self._by_row(size) if drafts else None)  # pyright: ignore[reportArgumentType]
        slots = self._shapes.num_slots
        return self._by_row(slots, NEWEST.size + self._shapes.row_tokens) if drafts else self._by_row(slots)

    def _by_row(self, rows: int, *more: int, dtype: Any = np.int32) -> jax.ShapeDtypeStruct:
        """An array over rows, or slots, of all shards."""
        return jax.ShapeDtypeStruct((rows * self._shapes.shards, *more), jnp.dtype(dtype), sharding=self._by_rows)

    def _sample(self, size: int) -> Program:
        state, params, masks, _ = self.slots
        head = tuple(like(leaf) for leaf in self._model.head)
        hidden, scored = self.scored_rows
        out = (_places(state), self._by_rows, self._by_rows)
        own = self._own
        function = self._over_data(
            partial(sample, self._model, self._shapes, size), (WHOLE, own, own, own, own, own), (own, own, own)
        )
        return Program(function, (head, state, params, masks, hidden, scored), (1,), out)

    def _masks(self, rows: int) -> Program:
        layout, masks = self._layouts.masks(rows), self.slots.masks

        def write(masks: jax.Array, packed: jax.Array) -> jax.Array:
            view = layout.views(packed)
            return set_masks(masks, view["places"], view["masks"])

        function = self._over_data(write, (self._own,) * 2, self._own)
        return Program(function, (masks, self._packed(layout.size)), (0,), _places(masks))

    def _history(self, tokens: int) -> Program:
        layout, state = self._layouts.history(tokens), self.slots.state

        def write(state: Any, packed: jax.Array) -> Any:
            view = layout.views(packed)
            return set_history(state, view["slots"], view["positions"], view["tokens"])

        function = self._over_data(write, (self._own,) * 2, self._own)
        return Program(function, (state, self._packed(layout.size)), (0,), _places(state))

    def _copies(self) -> Program:
        layout, kv, blocks = self._layouts.copies, self._kv(), kv_specs(self._model)

        def copy(kv: Arrays, packed: jax.Array) -> Arrays:
            copies = layout.views(packed)["copies"]
            return copied_blocks(self._model, kv, [copies[group] for group in self._stage.groups])

        function = self._over_data(copy, (blocks, self._own), blocks)
        return Program(function, (kv, self._packed(layout.size)), (0,), _places(kv))

    def _several(self, program: Callable[..., RowTokens], size: int, more: list[NamedSharding]) -> Program:
        """more: where results lie that others have not."""
        weights, head = self._with_draft
        (state, params, _, tables), kv = self.slots, self._kv()
        packed = self._packed(self._layouts.multi_token(size).size)
        arguments = (weights, head, kv, tables, state, params, self._load(), packed)
        blocks, own = kv_specs(self._model), self._own
        results: list[Any] = [blocks, own, own, WHOLE, own, own, *[own for _ in more]]
        counted = self._counting(partial(program, size))
        split = self._over_data(counted, (WHOLE, WHOLE, blocks, own, own, own, WHOLE, own), RowTokens(*results))
        kept: list[Any] = list(_places((kv, tables, state)))
        return Program(split, arguments, (2, 3, 4), RowTokens(*kept, *self._results, *more))

    def _draft(self, size: int) -> Program:
        """Drafts of a step that checks them by masks; `_verify` and `_accept` are the rest of it."""
        (state, params, _, tables), kv, own = self.slots, self._kv(), self._own
        weights, head = self._with_draft
        blocks, packed = kv_specs(self._model), self._packed(self._layouts.multi_token(size).size)
        function = self._over_data(
            partial(self._speculate.draft, size), (WHOLE, WHOLE, blocks, *[own] * 5), (blocks, own, own, own)
        )
        arguments = (weights, head, kv, tables, state, params, self.given(0), packed)
        out = (*_places((kv, tables)), self._by_rows, self._by_rows)
        return Program(function, arguments, (2, 3, 4) if self._updates_state else (2, 3), out)

    def _verify(self, size: int) -> Program:
        kv, tables, blocks, own = self._kv(), self.slots.tables, kv_specs(self._model), self._own
        weights, given = tuple(map(like, self._model.step_weights)), self._drafted(size)
        if not self._stage.is_first:
            given = self.given(size * self._shapes.row_tokens)._replace(rows=given)
        packed = self._packed(self._layouts.multi_token(size).size)
        function = self._counting(partial(self._speculate.verify, size))
        results: list[Any] = [blocks, own, WHOLE, own]
        split = self._over_data(function, (WHOLE, blocks, own, own, WHOLE, own), Forward(*results))
        arguments = (weights, kv, tables, given, self._load(), packed)
        if self._stage.is_first:
            out, donated = Forward(_places(kv), (), *self._results[:2]), (1,)
        else:
            out, donated = Forward(*_places((kv, tables)), *self._results[:2]), (1, 2)
        return Program(split, arguments, donated, out)

    def _accept(self, size: int) -> Program:
        (state, params, masks, _), own = self.slots, self._own
        hidden = self._by_row(size * self._shapes.row_tokens, self._model.config.hidden_size, dtype=self._model.dtype)
        packed, legal = self._packed(self._layouts.multi_token(size).size), self._packed(size)
        given: list[Any] = [own] * 5
        function = self._over_data(partial(self._speculate.accept, size), (WHOLE, *[own] * 7), AcceptedDrafts(*given))
        out: list[Any] = [_places(state), *[self._by_rows] * 4]
        head = tuple(map(like, self._model.head))
        return Program(
            function,
            (head, state, params, masks, hidden, self._drafted(size), packed, legal),
            (1,),
            AcceptedDrafts(*out),
        )

    @property
    def _with_draft(self) -> tuple[tuple[jax.ShapeDtypeStruct, ...], ...]:
        """Weights and head, with the draft model's."""
        arrays = (self._model.weights_with_draft, self._model.head_with_draft)
        return tuple(tuple(map(like, each)) for each in arrays)

    def _drafted(self, rows: int) -> jax.ShapeDtypeStruct:
        return self._by_row(rows, drafted_width(self._shapes))

    def _over_data(self, function: Callable[..., Any], taken: tuple[Any, ...], given: Any) -> Callable[..., Any]:
        """taken, given: how arguments and results are split over the shards."""
        return over_data(self._model.mesh, function, taken, given)

    def _counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A forward pass that takes the experts' load as its last argument but one, and gives that of all shards."""
        if self._shapes.shards == 1:
            return function

        def counted(*arguments: Any) -> Any:
            given = function(*arguments)
            return given._replace(load=added_up(self._model.mesh, arguments[-2], given.load))

        return counted

    @cached_property
    def scored_rows(self) -> Any:
        """Shapes of the arrays that every forward hands to every sample, by the smallest forward."""
        smallest = self._forward_program("decode", min(self._buckets.rows))
        forward = jax.eval_shape(smallest.function, *smallest.arguments)
        return jax.tree.map(lambda x: _at(x, self._by_rows), (forward.hidden, forward.scored))

    @cached_property
    def slots(self) -> Any:
        """Shapes of what the stage has of slots, as `own_slots` gives it."""
        slots = jax.eval_shape(partial(zero_slots, self._shapes, self._model.config.table_shape[0]))
        return own_slots(jax.tree.map(_at, slots, slot_shardings(self._model, slots)), self._stage)

    def _kv(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return kv_arrays(self._model, self._shapes)

    def _load(self) -> jax.ShapeDtypeStruct | None:
        shape = load_shape(self._model)
        return None if shape is None else jax.ShapeDtypeStruct(shape, np.uint32, sharding=self._replicated)

    def _packed(self, size: int) -> jax.ShapeDtypeStruct:
        return self._by_row(size)


def _places(arrays: Any) -> Any:
    """Return the shardings of arrays."""
    return jax.tree.map(lambda x: x.sharding, arrays)


def _at(x: jax.ShapeDtypeStruct, place: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)


def like(array: Any) -> jax.ShapeDtypeStruct:
    """The shape of an array, and where and how it lies."""
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.format)
