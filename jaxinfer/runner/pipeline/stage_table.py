"""StageTable: the programs of one stage of a pipeline."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.admit import admit_tables
from jaxinfer.runner.data_shards import WHOLE, kv_specs
from jaxinfer.runner.forward import Forward
from jaxinfer.runner.pipeline.stage import Stage
from jaxinfer.runner.pipeline.stage_forward import StageForward
from jaxinfer.runner.program_table import Program, ProgramTable, like
from jaxinfer.runner.sample import SampledArrays
from jaxinfer.runner.state import SlotState, unpack_newest

_OF_ALL = ("admit", "mixed", "decode", "copies")
_OF_LAST = (*_OF_ALL, "sample", "masks")


class StageTable(ProgramTable):
    """As `ProgramTable`, of a stage: `sample` and `masks` are the last's alone, which has all of a slot's state. The
    first has what admissions say of newest tokens."""

    def __init__(self, model: LoadedModel, shapes: EngineShapes, stage: Stage):
        """shapes: of the engine."""
        own = stage.shapes(shapes)
        self._stage = stage
        super().__init__(model, own, Layouts(shapes), stage.groups)
        self._stage_forward = StageForward(model, own, self._layouts, stage)
        kinds = _OF_LAST if stage.is_last else _OF_ALL
        self.names = tuple(name for name in self.names if name[0] in kinds)

    def slots(self) -> tuple[jax.ShapeDtypeStruct | None, tuple[jax.ShapeDtypeStruct, ...]]:
        """Of a stage that is not the last: newest tokens, where it is the first, and block tables."""
        whole = self._slots()
        return whole.state.newest if self._stage.is_first else None, whole.tables  # pyright: ignore

    def given(self, size: int) -> jax.ShapeDtypeStruct:
        """What the stage is handed for a step of so many tokens, or rows, a shard."""
        shards = self._shapes.shards
        shape: tuple[int, ...]
        if self._stage.is_first:
            shape, dtype = (self._shapes.num_slots * shards,), jnp.dtype(np.int32)
        else:
            shape, dtype = (size * shards, self._model.config.hidden_size), self._model.dtype
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._by_rows)

    def _sample(self, size: int) -> Program:
        """Gives the newest tokens of all slots as well, int32 [slots], for the first stage: a copy, since the state is
        donated to the next sample, which does not wait for another host to have read it."""
        whole = super()._sample(size)

        def sample(*arguments: Any) -> tuple[SlotState, SampledArrays, jax.Array]:
            state, sampled = whole.function(*arguments)
            return state, sampled, unpack_newest(state.newest).last_token

        return whole._replace(function=sample, out_shardings=(*whole.out_shardings, self._by_rows))

    def _admit(self) -> Program:
        if self._stage.is_last:
            return super()._admit()
        layout, (newest, tables) = self._layouts.admit, self.slots()
        function = self._over_data(partial(admit_tables, layout, self._groups), (self._own,) * 3, self._own)
        out = jax.tree.map(lambda x: x.sharding, (newest, tables))
        return Program(function, (newest, tables, self._packed(layout.size)), (0, 1), out)

    def _forward_program(self, kind: str, size: int) -> Program:
        layout = self._layouts.decode(size) if kind == "decode" else self._layouts.mixed(size)
        function = self._stage_forward.decode if kind == "decode" else self._stage_forward.mixed
        (newest, tables), kv, blocks, own = self.slots(), self._kv(), kv_specs(self._model), self._own
        weights, packed, is_last = tuple(map(like, self._model.weights)), self._packed(layout.size), self._stage.is_last
        arguments = (weights, kv, tables, newest, self.given(size), self._load(), packed)
        given: list[Any] = [blocks, own, WHOLE, own, own if is_last else None]
        counted = self._counting(partial(function, size))
        split = self._over_data(counted, (WHOLE, blocks, own, own, own, WHOLE, own), Forward(*given))
        results: list[Any] = [tuple(x.sharding for x in kv), tuple(x.sharding for x in tables)]
        results += [self._replicated, self._by_rows, self._by_rows if is_last else None]
        return Program(split, arguments, (1, 2), Forward(*results))
