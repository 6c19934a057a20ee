"""StageDevice: what one stage of a pipeline has on its devices, and its programs over it."""

from functools import cached_property
from typing import Any

import jax
import numpy as np

from jaxinfer.engine.device.calls import CopyBlocks, InitSlots, SetHistory, SetMasks, Write
from jaxinfer.engine.device.runner import ExpertTokens
from jaxinfer.engine.step.packed import PackedBurst, PackedForward
from jaxinfer.engine.step.plan import StepKind
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.expert_load import ExpertLoad, StepLoad
from jaxinfer.runner.expert_moves import expert_moves
from jaxinfer.runner.pipeline.absent import absent, has_devices_here
from jaxinfer.runner.pipeline.known_slots import KnownSlots
from jaxinfer.runner.pipeline.stage import Stage
from jaxinfer.runner.pipeline.stage_forward import Passed, StageForwarded
from jaxinfer.runner.pipeline.stage_table import StageTable
from jaxinfer.runner.program_store import ProgramStore
from jaxinfer.runner.programs import Programs
from jaxinfer.runner.results import drop, is_here
from jaxinfer.runner.sample import SampledArrays
from jaxinfer.runner.speculate import Accepted
from jaxinfer.runner.xla_options import Options
from jaxinfer.runner.zeros import compiled_kv, compiled_slots


class Handed:
    """A stage as what hands something over to it knows it. is_here: whether some of its devices are this process's."""

    def __init__(self, model: LoadedModel, shapes: EngineShapes, stage: Stage):
        """shapes: of the engine."""
        self.model, self.stage = model, stage
        self.table = StageTable(model, shapes, stage)
        self.is_here = has_devices_here(model)
        self._place = jax.tree.leaves(self.table.given(0))[0].sharding

    def nothing_given(self) -> jax.Array:
        """Return zeros in place of the first stage's input, for a step without rows."""
        shape = self.table.given(0)
        if not self.is_here:
            return absent(shape.shape, shape.dtype, shape.sharding)
        return jax.device_put(np.zeros(shape.shape, shape.dtype), shape.sharding)

    def hand_over(self, given: Any) -> Any:
        """Starts to copy arrays over rows or slots to the stage's devices: what it is to compute from. Of several
        processes every one that has devices at either end must do so."""
        if not self.is_here and not any(map(is_here, jax.tree.leaves(given))):
            return jax.tree.map(lambda array: absent(array.shape, array.dtype, self._place), given)
        return jax.device_put(given, self._place, may_alias=False)


class StageDevice(Handed):
    """Weights, KV blocks, block tables and programs of a stage; of the first what it knows of slots as well. Arrays are
    updated by donation."""

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
        super().__init__(model, shapes, stage)
        self.programs = Programs(model, shapes, options, store, self.table)
        self._make_kv = compiled_kv(model, stage.shapes(shapes))
        self._make_slots = self._compiled_slots(stage.shapes(shapes))
        self._load = ExpertLoad(model)
        self._moves = expert_moves(model, self._load, expert_placement_steps)
        self._tables: tuple[jax.Array, ...] = ()
        self._known: jax.Array | KnownSlots | None = None
        self.make_slots()

    @cached_property
    def kv(self) -> tuple[jax.Array, ...]:
        """Blocks of every group of the stage. Made when first used: compiling may need the room."""
        return self._make_kv()

    def make_slots(self) -> None:
        """Makes the state of slots anew."""
        self._known, self._tables = self._make_slots()

    def write(self, call: Write) -> None:
        """Starts to change what the stage remembers; calls for what it does not know are not its."""
        match call:
            case InitSlots(packed):
                self._known, self._tables = self.programs["admit", 0](self._known, self._tables, packed)
            case SetHistory(packed) if self._known is not None:
                self._known = self.programs["history", packed.bucket](self._known, packed.array)
            case CopyBlocks(packed):
                self.kv = self.programs["copies", 0](self.kv, packed)

    def forward(self, step: PackedForward, given: jax.Array | Passed) -> tuple[StageForwarded, StepLoad]:
        """Starts the stage's part of a forward pass. given: what the stage is handed, as `StageForward` takes it."""
        program, load = self.programs[step.kind, step.bucket], self._load.dispatched
        weights = self.model.step_weights if step.kind is StepKind.DECODE else self.model.weights_with_draft
        out: StageForwarded = program(weights, self.kv, self._tables, self._known, given, load, step.array)
        if out.known is not None:
            self._known = out.known
        return out, self._forwarded(out)

    def draft(self, step: PackedBurst, given: jax.Array) -> jax.Array:
        """Start to draft for a step, in the first stage. Returns packed `Drafted`."""
        weights, head = self.model.weights_with_draft, self.model.head_with_draft
        program = self.programs["draft", step.bucket]
        out = program(weights, head, self.kv, self._tables, self._known, given, step.array)
        self.kv, self._tables, self._known = out.kv, out.tables, out.known
        return out.drafted

    def verify(self, step: PackedBurst, given: jax.Array | Passed) -> tuple[StageForwarded, StepLoad]:
        """Starts the stage's part of a forward pass over drafts. given: of the first what it has drafted."""
        program, load = self.programs["verify", step.bucket], self._load.dispatched
        out: StageForwarded = program(self.model.weights, self.kv, self._tables, given, load, step.array)
        return out, self._forwarded(out)

    def _forwarded(self, out: StageForwarded) -> StepLoad:
        """Takes what a forward pass has changed."""
        self.kv, self._tables = out.kv, out.tables
        dispatched = self._load.dispatch(out.load)
        if self._moves is not None:
            self.model = self._moves.after_step(self.model)
        return dispatched

    def collect(self, load: StepLoad) -> None:
        """A step was collected, after which the experts' load is this."""
        self._load.collect(load)

    def expert_load(self) -> ExpertTokens | None:
        """Read the load of the stage's experts."""
        return self._load.read()

    def warm_up_moves(self) -> None:
        """Compiles what moves experts."""
        if self._moves is not None:
            self.model = self._moves.warm_up(self.model)

    def reset(self) -> None:
        """Makes what was dropped anew."""
        self._load.reset()
        self.make_slots()
        self.kv = self._make_kv()

    def drop(self) -> None:
        """Deletes KV blocks and the state of slots."""
        drop((self.kv, *self._slots()))

    def wait(self) -> None:
        """Until everything is there."""
        jax.block_until_ready((self.kv, *self._slots()))

    def _slots(self) -> tuple[Any, ...]:
        return self._known, self._tables

    def _compiled_slots(self, shapes: EngineShapes) -> jax.stages.Compiled:
        return compiled_slots(self.model, shapes, self.table.own_slots)


class LastStage(StageDevice):
    """The stage that draws: it has all of a slot's state."""

    def make_slots(self) -> None:
        self._state, self._params, self._masks, self._tables = self._make_slots()

    def write(self, call: Write) -> None:
        match call:
            case InitSlots(packed):
                program = self.programs["admit", 0]
                self._state, self._params, self._tables = program(self._state, self._params, self._tables, packed)
            case SetMasks(packed):
                self._masks = self.programs["masks", packed.bucket](self._masks, packed.array)
            case SetHistory(packed):
                self._state = self.programs["history", packed.bucket](self._state, packed.array)
            case CopyBlocks():
                super().write(call)

    def accept(
        self, step: PackedBurst, hidden: jax.Array, drafted: jax.Array, legal: np.ndarray
    ) -> tuple[Accepted, jax.Array]:
        """Starts to draw at all positions of a step that drafts. Gives what the first stage is handed, too."""
        own = (self._state, self._params, self._masks)
        program = self.programs["accept", step.bucket]
        out, back = program(self.model.head, *own, hidden, drafted, step.array, legal)
        self._state = out.state
        return out, back

    def sample(self, size: int, forwarded: StageForwarded) -> tuple[SampledArrays, jax.Array]:
        """Starts to draw at the first `size` of the scored positions. Gives what the first stage is handed, too."""
        own = (self._state, self._params, self._masks)
        program = self.programs["sample", size]
        self._state, sampled, back = program(self.model.head, *own, forwarded.hidden, forwarded.scored)
        return sampled, back

    def _slots(self) -> tuple[Any, ...]:
        return self._state, self._params, self._masks, self._tables

    def _compiled_slots(self, shapes: EngineShapes) -> jax.stages.Compiled:
        return compiled_slots(self.model, shapes)
