"""JaxRunner: runs steps on the device."""

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxinfer.engine.device.calls import CopyBlocks, InitSlots, SetHistory, SetMasks, Write
from jaxinfer.engine.device.device_runner import DeviceRunner
from jaxinfer.engine.device.runner import Drafts, LatePrograms, RunnerStatus
from jaxinfer.engine.step.packed import PackedBurst, PackedForward
from jaxinfer.engine.step.packing import Packer
from jaxinfer.engine.step.plan import StepKind, StepResult
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.compiles import compile_counter
from jaxinfer.runner.expert_load import ExpertLoad, StepLoad
from jaxinfer.runner.expert_moves import expert_moves
from jaxinfer.runner.multi_step import Burst
from jaxinfer.runner.program_store import ProgramStore
from jaxinfer.runner.programs import CompileProgress, MakingSeconds, Programs
from jaxinfer.runner.results import BurstStep, SampledStep, drop, memory_of
from jaxinfer.runner.sample import SampledArrays
from jaxinfer.runner.speculate import Accepted, Drafted
from jaxinfer.runner.xla_options import Options
from jaxinfer.runner.zeros import compiled_kv, compiled_slots

_LONG_RUN = 0.2
"""Seconds."""


class Forwarded(NamedTuple):
    """A forward pass in flight: what `sample` reads of it."""

    hidden: jax.Array
    scored: jax.Array
    load: StepLoad


class StepInFlight(NamedTuple):
    """A step in flight, and the load of experts after it."""

    sampled: SampledStep
    load: StepLoad


class BurstInFlight(NamedTuple):
    """Several tokens a row in flight, and the load of experts after it."""

    sampled: BurstStep
    load: StepLoad


class DraftedStep(NamedTuple):
    """Drafts, and a forward pass over them, in flight. drafted: a packed `Drafted`."""

    drafted: jax.Array
    hidden: jax.Array
    load: StepLoad


class JaxRunner(DeviceRunner):
    """Weights, KV blocks and slot state of one engine, and the programs over them.

    Everything on the device is updated by donation; steps run in the order of dispatch.
    """

    def __init__(
        self,
        model: LoadedModel,
        shapes: EngineShapes,
        *,
        options: Options | None = None,
        store: ProgramStore | None = None,
        expert_placement_steps: int = 0,
    ):
        super().__init__()
        self.shapes = shapes
        self.model = model
        self.programs = Programs(model, shapes, options, store)
        self._make_slots = compiled_slots(model, shapes)
        self._make_kv = compiled_kv(model, shapes)
        self._state, self._params, self._masks, self._tables = self._make_slots()
        self._load = ExpertLoad(model)
        self._moves = expert_moves(model, self._load, expert_placement_steps)
        self._compiles_at_ready = 0
        self.step_seconds: dict[tuple[StepKind, int], float] = {}

    @cached_property
    def kv(self) -> tuple[jax.Array, ...]:
        """Blocks of every group, and features. Made when first used: compiling for a GPU tries products out, and needs
        room."""
        return self._make_kv()

    @property
    def compiling(self) -> bool:
        """True while a program is made in the midst of a step (`lazy_compile`)."""
        return self.programs.compiling

    @property
    def late_programs(self) -> LatePrograms:
        """Programs that were compiled, or read from the cache, in the midst of a step (`lazy_compile`)."""
        return self.programs.late

    @property
    def making_seconds(self) -> MakingSeconds:
        """Seconds that making its programs took: tracing, and all together."""
        return self.programs.seconds

    def warm_up(
        self,
        progress: CompileProgress | None = None,
        *,
        lazy: bool = False,
        compiled: Callable[[], object] = lambda: None,
    ) -> None:
        """Compiles every program and runs each once, so that nothing is left to do when requests come. compiled: is
        called in between, where hosts wait for each other."""
        if not lazy:
            self.programs.compile_all(progress)
        compiled()
        if not lazy:
            self._run_all()
            if self._moves is not None:
                self.model = self._moves.warm_up(self.model)
        self._compiles_at_ready = compile_counter.count

    def write(self, call: Write) -> None:
        match call:
            case InitSlots(packed):
                program = self.programs["admit", 0]
                self._state, self._params, self._tables = program(self._state, self._params, self._tables, packed)
            case SetHistory(packed):
                self._state = self.programs["history", packed.bucket](self._state, packed.array)
            case SetMasks(packed):
                self._masks = self.programs["masks", packed.bucket](self._masks, packed.array)
            case CopyBlocks(packed):
                self.kv = self.programs["copies", 0](self.kv, packed)

    def forward(self, step: PackedForward) -> Forwarded:
        program, (newest, _, history) = self.programs[step.kind, step.bucket], self._state
        decode = step.kind is StepKind.DECODE
        weights = self.model.step_weights if decode else self.model.weights_with_draft
        known = (newest, None if decode or not self.model.taps else history)
        out = program(weights, self.kv, self._tables, *known, self._load.dispatched, step.array)
        self.kv, self._tables = out.kv, out.tables
        load = self._load.dispatch(out.load)
        self._place_experts()
        return Forwarded(out.hidden, out.scored, load)

    def sample(self, step: PackedForward, begun: Forwarded) -> StepInFlight:
        if not step.num_scored:
            return StepInFlight(SampledStep(step, begun.hidden, None), begun.load)
        sampled = self._sample(step.scored_bucket, begun)
        return StepInFlight(SampledStep.begun(step, begun.hidden, sampled), begun.load)

    def burst(self, step: PackedBurst) -> BurstInFlight:
        program = self.programs[step.kind, step.bucket]
        model, state, load = self.model, (self._state, self._params), self._load.dispatched
        weights, head = model.weights_with_draft, model.head_with_draft
        out = program(weights, head, self.kv, self._tables, *state, load, step.array)
        self.kv, self._tables, self._state = out.kv, out.tables, out.state
        load = self._load.dispatch(out.load)
        self._place_experts()
        return self._burst_in_flight(step, out, load)

    def draft(self, step: PackedBurst) -> DraftedStep:
        model, state = self.model, (self._state, self._params)
        weights, head = model.weights_with_draft, model.head_with_draft
        draft, verify = self.programs["draft", step.bucket], self.programs["verify", step.bucket]
        self.kv, self._tables, drafted = draft(weights, head, self.kv, self._tables, *state, step.array)
        drafted.copy_to_host_async()
        out = verify(model.step_weights, self.kv, self._tables, drafted, self._load.dispatched, step.array)
        self.kv = out.kv
        load = self._load.dispatch(out.load)
        self._place_experts()
        return DraftedStep(drafted, out.hidden, load)

    def drafts(self, step: PackedBurst, begun: DraftedStep) -> Drafts:
        found: Any = Drafted.unpacked(step.of_rows(np.asarray(begun.drafted)))
        return Drafts(found.drafts, found.count)

    def verify(self, step: PackedBurst, begun: DraftedStep, counts: np.ndarray) -> BurstInFlight:
        legal = step.in_rows(counts, self.shapes.shards)
        given = (self._state, self._params, self._masks, begun.hidden, begun.drafted, step.array, legal)
        out = self.programs["accept", step.bucket](self.model.head, *given)
        self._state = out.state
        return self._burst_in_flight(step, out, begun.load)

    def _burst_in_flight(self, step: PackedBurst, out: Burst | Accepted, load: StepLoad) -> BurstInFlight:
        return BurstInFlight(BurstStep.begun(step, out.tokens, out.tokens, out.counts, out.logprobs), load)

    def result(self, started: StepInFlight | BurstInFlight) -> StepResult:
        result = started.sampled.result()
        self._load.collect(started.load)
        return result

    def status(self) -> RunnerStatus:
        """A reading, as `Runner.status`."""
        return RunnerStatus(
            tuple(map(memory_of, self.model.mesh.devices.flat)),
            compile_counter.count - self._compiles_at_ready,
            self._load.read(),
        )

    def _place_experts(self) -> None:
        if self._moves is not None:
            self.model = self._moves.after_step(self.model)

    def reset(self) -> None:
        """Makes blocks and slot state anew, with the programs of the first time. Raises where the device is gone.

        The old arrays go first, which leaves room for the new; those that a failed step was given are gone already.
        """
        drop((self._state, self._params, self._masks, self._tables, self.kv))
        self._load.reset()
        self._state, self._params, self._masks, self._tables = self._make_slots()
        self.kv = self._make_kv()
        jax.block_until_ready((self._state, self._params, self._masks, self._tables, self.kv))

    def close(self) -> None:
        """Drops the device's arrays."""
        self.kv = ()

    def _sample(self, size: int, forwarded: Forwarded) -> SampledArrays:
        program = self.programs["sample", size]
        own = (self._state, self._params, self._masks)
        self._state, sampled = program(self.model.head, *own, forwarded.hidden, forwarded.scored)
        return sampled

    def _run_all(self) -> None:
        """Runs every program over padding; with few sizes, forward passes over a row, too."""
        packer = Packer(self.shapes)
        self.write(InitSlots(packer.no_slots()))
        forwarded = None
        for kind, size in self.programs.names:
            if kind == "sample":
                assert forwarded is not None
                self._sample(size, forwarded).tokens.block_until_ready()
            elif kind == "masks":
                self.write(SetMasks(packer.no_masks(size)))
            elif kind == "history":
                self.write(SetHistory(packer.no_history(size)))
            elif kind == "copies":
                self.write(CopyBlocks(packer.no_copies()))
            elif kind == "draft":
                self._run_drafts(packer, size)
            elif kind not in ("admit", "verify", "accept"):
                step = packer.padding(StepKind(kind), size)
                if isinstance(step, PackedBurst):
                    self.burst(step).sampled.tokens.block_until_ready()
                else:
                    forwarded = self._warmed(step, packer)
        if self.shapes.few_sizes:
            self._load.reset()  # of the rows that were timed

    def _run_drafts(self, packer: Packer, size: int) -> None:
        step = packer.padding(StepKind.SPECULATE, size)
        assert isinstance(step, PackedBurst)
        self.verify(step, self.draft(step), np.zeros(0, np.int32)).sampled.tokens.block_until_ready()

    def _warmed(self, step: PackedForward, packer: Packer) -> Forwarded:
        """Runs a forward pass over padding, and notes how long one takes: a second, unless the first is so long that
        what a program does once is little of it.

        With few sizes padding costs nothing, and the second has a row. More rows would take longer in each program
        alike, so that is left out, as the times are there to be compared (`FastForward`).
        """
        forwarded, seconds = self._timed(step)
        if self.shapes.few_sizes:
            row = packer.one_row(step.kind, step.bucket)
            assert isinstance(row, PackedForward)
            seconds = self._timed(row)[1]
        # Clocks differ: of several hosts each must run a program as often as the others.
        elif seconds <= _LONG_RUN or jax.process_count() > 1:
            seconds = self._timed(step)[1]
        self.step_seconds[step.kind, step.bucket] = seconds
        return forwarded

    def _timed(self, step: PackedForward) -> tuple[Forwarded, float]:
        """A forward pass, and its seconds."""
        start = time.perf_counter()
        forwarded = self.forward(step)
        forwarded.hidden.block_until_ready()
        return forwarded, time.perf_counter() - start
