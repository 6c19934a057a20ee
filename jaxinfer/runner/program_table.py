"""ProgramTable: what each program is, and the shapes and shardings of all that it takes and gives."""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding

from jaxinfer.engine.step.buckets import make_buckets
from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.admit import admit
from jaxinfer.runner.data_shards import WHOLE, added_up, kv_arrays, kv_specs, over_data, rows
from jaxinfer.runner.drafters import make_drafter
from jaxinfer.runner.expert_load import load_shape
from jaxinfer.runner.forward import Arrays, Forward, ForwardPrograms, copied_blocks
from jaxinfer.runner.multi_step import Burst, MultiStepProgram
from jaxinfer.runner.sample import sample
from jaxinfer.runner.sampler.masks import set_masks
from jaxinfer.runner.speculate import Accepted, SpeculateProgram, Verified, drafted_width
from jaxinfer.runner.state import Slots, set_history, zero_slots
from jaxinfer.runner.vocabulary_shards import slot_shardings

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
    """The programs of one model and engine, by name. names: all of them, the largest of a kind first.

    layouts: of packed arrays, by default for the same shapes; `groups` are then those of the layouts' KV groups that
    the model has.
    """

    def __init__(
        self,
        model: LoadedModel,
        shapes: EngineShapes,
        layouts: Layouts | None = None,
        groups: Sequence[int] | None = None,
    ):
        self._model = model
        self._shapes = shapes
        self._layouts = layouts or Layouts(shapes)
        self._groups = range(len(shapes.groups)) if groups is None else groups
        buckets = make_buckets(shapes)
        self._drafter = drafter = make_drafter(model, shapes, self._layouts)
        reading = (None, None) if drafter is None else (drafter.follow, drafter.features)
        self._forward = ForwardPrograms(model, shapes, self._layouts, *reading)
        own = (model, shapes, self._layouts, self._forward)
        self._multi_step = MultiStepProgram(*own)
        self._speculate = None if drafter is None else SpeculateProgram(*own, drafter, self._groups)
        self._own = rows(model.mesh)
        self._replicated, self._by_rows = NamedSharding(model.mesh, WHOLE), NamedSharding(model.mesh, self._own)
        self._results: list[Any] = [self._replicated, self._by_rows, self._by_rows]
        self._smallest_decode = min(buckets.rows)
        self.names: tuple[Name, ...] = (
            ("admit", 0),
            *(("mixed", size) for size in reversed(buckets.tokens)),
            *(("decode", size) for size in reversed(buckets.rows)),
            *(("sample", size) for size in reversed(buckets.scored)),
            *(("masks", size) for size in reversed(buckets.masks)),
            ("copies", 0),
            *(("multi_step", size) for size in reversed(buckets.rows) if shapes.decode_steps > 1),
            *(("speculate", size) for size in reversed(buckets.rows) if drafter is not None),
            *((kind, size) for size in reversed(buckets.checked) for kind in ("draft", "verify", "accept")),
            *(("history", size) for size in reversed(buckets.history)),
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
            return self._burst(self._multi_step, size, [])
        if kind == "speculate":
            assert self._speculate is not None
            return self._burst(self._speculate, size, [self._by_rows])
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
        state, params, _, tables = self._slots()
        arguments = (state, params, tables, self._packed(layout.size))
        out = jax.tree.map(lambda x: x.sharding, (state, params, tables))
        function = self._over_data(partial(admit, self._model, layout, self._groups), (self._own,) * 4, self._own)
        return Program(function, arguments, (0, 1, 2), out)

    def _forward_program(self, kind: str, size: int) -> Program:
        layout = self._layouts.decode(size) if kind == "decode" else self._layouts.mixed(size)
        function = self._forward.decode if kind == "decode" else self._forward.mixed
        slots, kv = self._slots(), self._kv()
        state, tables = slots.state, slots.tables
        weights = self._model.step_weights if kind == "decode" else self._model.weights_with_draft
        history = state.history if kind == "mixed" and self._model.taps else None
        packed = self._packed(layout.size)
        arguments = (tuple(map(like, weights)), kv, tables, state.newest, history, self._load(), packed)
        blocks, own = kv_specs(self._model), self._own
        given: list[Any] = [blocks, own, WHOLE, own, own]
        counted = self._counting(partial(function, size))
        split = self._over_data(counted, (WHOLE, blocks, own, own, own, WHOLE, own), Forward(*given))
        shardings: list[Any] = [tuple(x.sharding for x in kv), tuple(x.sharding for x in tables)]
        return Program(split, arguments, (1, 2), Forward(*shardings, *self._results))

    def _sample(self, size: int) -> Program:
        state, params, masks, _ = self._slots()
        head = tuple(like(leaf) for leaf in self._model.head)
        hidden, scored = self.scored_rows
        out = (jax.tree.map(lambda x: x.sharding, state), self._by_rows)
        own = self._own
        function = self._over_data(
            partial(sample, self._model, self._shapes, size), (WHOLE, own, own, own, own, own), (own, own)
        )
        return Program(function, (head, state, params, masks, hidden, scored), (1,), out)

    def _masks(self, rows: int) -> Program:
        layout, masks = self._layouts.masks(rows), self._slots().masks

        def write(masks: jax.Array, packed: jax.Array) -> jax.Array:
            view = layout.views(packed)
            return set_masks(masks, view["places"], view["masks"])

        function = self._over_data(write, (self._own,) * 2, self._own)
        return Program(function, (masks, self._packed(layout.size)), (0,), masks.sharding)

    @property
    def _remembering(self) -> Any:
        """Shapes of the part of the slots' state that contains their history."""
        return self._slots().state

    def _history(self, tokens: int) -> Program:
        layout, state = self._layouts.history(tokens), self._remembering

        def write(state: Any, packed: jax.Array) -> Any:
            view = layout.views(packed)
            return set_history(state, view["slots"], view["positions"], view["tokens"])

        function = self._over_data(write, (self._own,) * 2, self._own)
        out = jax.tree.map(lambda x: x.sharding, state)
        return Program(function, (state, self._packed(layout.size)), (0,), out)

    def _copies(self) -> Program:
        layout, kv, blocks = self._layouts.copies, self._kv(), kv_specs(self._model)

        def copy(kv: Arrays, packed: jax.Array) -> Arrays:
            copies = layout.views(packed)["copies"]
            return copied_blocks(self._model, kv, [copies[group] for group in self._groups])

        function = self._over_data(copy, (blocks, self._own), blocks)
        return Program(function, (kv, self._packed(layout.size)), (0,), tuple(x.sharding for x in kv))

    def _burst(self, program: Callable[..., Burst], size: int, more: list[NamedSharding]) -> Program:
        """more: where results lie that others have not."""
        weights, head = self._with_draft
        (state, params, _, tables), kv = self._slots(), self._kv()
        packed = self._packed(self._layouts.burst(size).size)
        arguments = (weights, head, kv, tables, state, params, self._load(), packed)
        blocks, own = kv_specs(self._model), self._own
        results: list[Any] = [blocks, own, own, WHOLE, own, own, *[own for _ in more]]
        counted = self._counting(partial(program, size))
        split = self._over_data(counted, (WHOLE, WHOLE, blocks, own, own, own, WHOLE, own), Burst(*results))
        kept: list[Any] = list(jax.tree.map(lambda x: x.sharding, (kv, tables, state)))
        return Program(split, arguments, (2, 3, 4), Burst(*kept, *self._results, *more))

    def _draft(self, size: int) -> Program:
        """Drafts of a step that checks them by masks; `_verify` and `_accept` are the rest of it."""
        assert self._speculate is not None
        (state, params, _, tables), kv, own = self._slots(), self._kv(), self._own
        weights, head = self._with_draft
        blocks, packed = kv_specs(self._model), self._packed(self._layouts.burst(size).size)
        function = self._over_data(
            partial(self._speculate.draft, size), (WHOLE, WHOLE, blocks, own, own, own, own), (blocks, own, own)
        )
        kept = jax.tree.map(lambda x: x.sharding, (kv, tables))
        return Program(function, (weights, head, kv, tables, state, params, packed), (2, 3), (*kept, self._by_rows))

    def _verify(self, size: int) -> Program:
        assert self._speculate is not None
        kv, tables, blocks, own = self._kv(), self._slots().tables, kv_specs(self._model), self._own
        weights, drafted = tuple(map(like, self._model.step_weights)), self._drafted(size)
        packed = self._packed(self._layouts.burst(size).size)

        def verify(
            weights: Arrays, kv: Arrays, tables: Arrays, drafted: jax.Array, load: jax.Array | None, packed: jax.Array
        ) -> Verified:
            assert self._speculate is not None
            return self._speculate.verify(size, weights, kv, tables, drafted, load, packed)

        given: list[Any] = [blocks, WHOLE, own]
        split = self._over_data(self._counting(verify), (WHOLE, blocks, own, own, WHOLE, own), Verified(*given))
        out: list[Any] = [tuple(x.sharding for x in kv), self._replicated, self._by_rows]
        return Program(split, (weights, kv, tables, drafted, self._load(), packed), (1,), Verified(*out))

    def _accept(self, size: int) -> Program:
        assert self._speculate is not None
        (state, params, masks, _), own = self._slots(), self._own
        width, dtype = size * self._shapes.burst * self._shapes.shards, self._model.dtype
        hidden = jax.ShapeDtypeStruct((width, self._model.config.hidden_size), dtype, sharding=self._by_rows)
        packed, legal = self._packed(self._layouts.burst(size).size), self._packed(size)
        given: list[Any] = [own] * 4
        function = self._over_data(partial(self._speculate.accept, size), (WHOLE, *[own] * 7), Accepted(*given))
        out: list[Any] = [jax.tree.map(lambda x: x.sharding, state), *[self._by_rows] * 3]
        head = tuple(map(like, self._model.head))
        return Program(
            function, (head, state, params, masks, hidden, self._drafted(size), packed, legal), (1,), Accepted(*out)
        )

    @property
    def _with_draft(self) -> tuple[tuple[jax.ShapeDtypeStruct, ...], ...]:
        """Weights and head, with the draft model's."""
        arrays = (self._model.weights_with_draft, self._model.head_with_draft)
        return tuple(tuple(map(like, each)) for each in arrays)

    def _drafted(self, rows: int) -> jax.ShapeDtypeStruct:
        shape = (rows * self._shapes.shards, drafted_width(self._shapes))
        return jax.ShapeDtypeStruct(shape, np.int32, sharding=self._by_rows)

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
        smallest = self._forward_program("decode", self._smallest_decode)
        forward = jax.eval_shape(smallest.function, *smallest.arguments)
        return jax.tree.map(lambda x: _at(x, self._by_rows), (forward.hidden, forward.scored))

    def _slots(self) -> Slots:
        slots = jax.eval_shape(partial(zero_slots, self._shapes, self._model.config.table_shape[0]))
        return jax.tree.map(_at, slots, slot_shardings(self._model, slots))

    def _kv(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        return kv_arrays(self._model, self._shapes)

    def _load(self) -> jax.ShapeDtypeStruct | None:
        shape = load_shape(self._model)
        return None if shape is None else jax.ShapeDtypeStruct(shape, np.uint32, sharding=self._replicated)

    def _packed(self, size: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((size * self._shapes.shards,), np.int32, sharding=self._by_rows)


def _at(x: jax.ShapeDtypeStruct, place: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)


def like(array: Any) -> jax.ShapeDtypeStruct:
    """The shape of an array, and where and how it lies."""
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.format)
