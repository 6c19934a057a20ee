"""StageDevice: what an engine, or one stage of a pipeline, has on its devices, and its programs over it."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from jaxinfer.engine.device.calls import CopyBlocks, InitSlots, SetHistory, SetMasks, Write
from jaxinfer.engine.device.runner import ExpertTokens
from jaxinfer.engine.step.packed import PackedStep
from jaxinfer.engine.step.plan import StepKind
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.drafting.speculate import AcceptedDrafts
from jaxinfer.runner.experts.load import ExpertLoad, StepLoad
from jaxinfer.runner.experts.moves import ExpertMoves, expert_moves
from jaxinfer.runner.platform.xla_options import Options
from jaxinfer.runner.programs.compiled import Programs
from jaxinfer.runner.programs.store import ProgramStore
from jaxinfer.runner.programs.table import ProgramTable
from jaxinfer.runner.programs.zeros import compiled_kv, compiled_slots
from jaxinfer.runner.results import drop, is_here
from jaxinfer.runner.stages.absent import AbsentPrograms, absent, has_devices_here
from jaxinfer.runner.step.begun_rows import Given
from jaxinfer.runner.step.data_shards import kv_arrays, rows
from jaxinfer.runner.step.forward import Forward
from jaxinfer.runner.step.multi_step import RowTokens
from jaxinfer.runner.step.sample import SampledArrays
from jaxinfer.runner.step.stage import Stage
from jaxinfer.runner.step.stage_slots import own_slots


class StageDevice:
    """Weights, KV blocks, slots and programs of a stage. Everything on the devices is updated by donation.

    is_here: whether some of its devices are this process's. If not, its arrays are absent, and so are its programs.
    """

    def __init__(
        self,
        model: LoadedModel,
        shapes: EngineShapes,
        stage: Stage,
        options: Options | None = None,
        store: ProgramStore | None = None,
        expert_placement_steps: int = 0,
    ):
        """shapes: of the engine."""
        self.model, self.stage = model, stage
        self.is_here = has_devices_here(model)
        self.table = table = ProgramTable(model, shapes, stage)
        own = stage.shapes(shapes)
        self.programs: Programs
        self._make_kv: Callable[[], tuple[jax.Array, ...]]
        if self.is_here:
            self.programs = Programs(model, own, options, store, table)
            self._make_kv = compiled_kv(model, own)
            self._make_slots = compiled_slots(model, own, lambda slots: own_slots(slots, stage))
        else:
            self.programs = AbsentPrograms(model, own, table)
            self._make_kv = lambda: absent(kv_arrays(model, own))
            self._make_slots = lambda: absent(table.slots)
        self._place = NamedSharding(model.mesh, rows(model.mesh))
        self._load = ExpertLoad(model, counts=self.is_here)
        self._moves: ExpertMoves | None = None
        self._placement_steps = expert_placement_steps
        self.slots = self._make_slots()

    @cached_property
    def kv(self) -> tuple[jax.Array, ...]:
        """Blocks of every group of the stage, and features. Made when first used: compiling for a GPU tries products
        out, and needs room."""
        return self._make_kv()

    def nothing_given(self) -> jax.Array | None:
        """Return zeros in place of the first stage's input, for a step without rows."""
        shape = self.table.given(0)
        if shape is None or not self.is_here:
            return absent(shape)
        return jax.device_put(np.zeros(shape.shape, shape.dtype), shape.sharding)

    def hand_over(self, given: Any) -> Any:
        """Starts to copy arrays over rows or slots to the stage's devices: what it is to compute from. Of several
        processes every one that has devices at either end must do so."""
        if not self.is_here and not any(map(is_here, jax.tree.leaves(given))):
            return absent(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._place), given))
        return jax.device_put(given, self._place, may_alias=False)

    def write(self, call: Write) -> None:
        """Starts to change what the stage remembers; calls for what it does not know are not its."""
        if not self.is_here:
            return
        match call:
            case InitSlots(packed):
                state, params, masks, tables = self.slots
                state, params, tables = self.programs["admit", 0](state, params, tables, packed)
                self.slots = self.slots._replace(state=state, params=params, tables=tables)
            case SetHistory(packed) if self.slots.state is not None:
                self._keep_state(self.programs["history", packed.bucket](self.slots.state, packed.array))
            case SetMasks(packed) if self.slots.masks is not None:
                masks = self.programs["masks", packed.bucket](self.slots.masks, packed.array)
                self.slots = self.slots._replace(masks=masks)
            case CopyBlocks(packed):
                self.kv = self.programs["copies", 0](self.kv, packed)

    def forward(self, step: PackedStep, given: Given) -> tuple[Forward, StepLoad]:
        """Starts the stage's part of a forward pass."""
        program, slots = self.programs[step.kind, step.bucket], self.slots
        weights = self.model.step_weights if step.kind is StepKind.DECODE else self.model.weights_with_draft
        state = self.table.read_state(step.kind, slots.state)
        out: Forward = program(weights, self.kv, slots.tables, state, given, self._load.dispatched, step.array)
        if out.state is not None:
            self._keep_state(out.state)
        return out, self._forwarded(out, out.tables)

    def sample(self, size: int, hidden: jax.Array, scored: jax.Array) -> tuple[SampledArrays, jax.Array | None]:
        """Starts to draw at the first `size` of the scored positions, in the last stage. Gives what the first of
        several is handed, too."""
        own, program = self.slots, self.programs["sample", size]
        given = (own.state, own.params, own.masks, hidden, scored)
        state, sampled, back = program(self.model.head, *given)
        self._keep_state(state)
        return sampled, back

    def multi_token(self, step: PackedStep) -> tuple[RowTokens, StepLoad]:
        """Starts a step of MULTI_TOKEN in one program, where one stage is all."""
        program, model, own = self.programs[step.kind, step.bucket], self.model, self.slots
        weights, head = model.weights_with_draft, model.head_with_draft
        given = (own.tables, own.state, own.params, self._load.dispatched, step.array)
        out: RowTokens = program(weights, head, self.kv, *given)
        self._keep_state(out.state)
        return out, self._forwarded(out, out.tables)

    def draft(self, step: PackedStep, given: jax.Array | None) -> jax.Array:
        """Start to draft for a step, in the first stage. Returns packed `Drafted`. given: of `Given`."""
        own, program = self.slots, self.programs["draft", step.bucket]
        weights, head = self.model.weights_with_draft, self.model.head_with_draft
        out = program(weights, head, self.kv, own.tables, own.state, own.params, given, step.array)
        self.kv, tables, drafted, state = out
        self.slots = own._replace(tables=tables, state=own.state if state is None else state)
        return drafted

    def verify(self, step: PackedStep, given: Given) -> tuple[Forward, StepLoad]:
        """Starts the stage's part of a forward pass over drafts. given: of the first stage what it has drafted."""
        own, program = self.slots, self.programs["verify", step.bucket]
        out: Forward = program(self.model.step_weights, self.kv, own.tables, given, self._load.dispatched, step.array)
        return out, self._forwarded(out, own.tables if self.stage.is_first else out.tables)

    def accept(self, step: PackedStep, hidden: jax.Array, drafted: jax.Array, legal: np.ndarray) -> AcceptedDrafts:
        """Starts to draw at all positions of a step that drafts, in the last stage."""
        own, program = self.slots, self.programs["accept", step.bucket]
        given = (own.state, own.params, own.masks, hidden, drafted, step.array, legal)
        out: AcceptedDrafts = program(self.model.head, *given)
        self._keep_state(out.state)
        return out

    def _keep_state(self, state: Any) -> None:
        self.slots = self.slots._replace(state=state)

    def _forwarded(self, out: Forward | RowTokens, tables: tuple[jax.Array, ...]) -> StepLoad:
        """Takes what a forward pass has changed."""
        self.kv, self.slots = out.kv, self.slots._replace(tables=tables)
        load = self._load.dispatch(out.load)
        if self._moves is not None:
            self.model = self._moves.after_step(self.model)
        return load

    def collect(self, load: StepLoad) -> None:
        """A step was collected, after which the experts' load is this."""
        self._load.collect(load)

    def expert_load(self) -> ExpertTokens | None:
        """Read the load of the stage's experts; None where it is unknown here."""
        return self._load.read()

    def begin_moves(self, *, compiled: bool) -> None:
        """From now on experts are moved: steps that warm programs up are no load. compiled: compiles what moves
        them."""
        self._moves = expert_moves(self.model, self._load, self._placement_steps) if self.is_here else None
        if compiled and self._moves is not None:
            self.model = self._moves.warm_up(self.model)

    def forget_load(self) -> None:
        """Counts the load of experts from 0."""
        self._load.reset()

    def drop(self) -> None:
        """Deletes KV blocks and slots. Those that a failed step was given are gone already."""
        if self.is_here:
            drop((self.kv, self.slots))

    def reset(self) -> None:
        """Makes what was dropped anew, with the programs of the first time."""
        self.forget_load()
        self.slots, self.kv = self._make_slots(), self._make_kv()

    def wait(self) -> None:
        """Until everything is there. Raises where the device is gone."""
        if self.is_here:
            jax.block_until_ready((self.kv, self.slots))

    def close(self) -> None:
        """Drops the blocks."""
        self.kv = ()
