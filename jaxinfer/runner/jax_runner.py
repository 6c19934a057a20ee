"""JaxRunner: runs steps on the device, or through the stages of a pipeline."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxinfer.config import CompileTime
from jaxinfer.engine.device.calls import CopyBlocks, InitSlots, SetHistory, SetMasks, Write
from jaxinfer.engine.device.device_runner import DeviceRunner
from jaxinfer.engine.device.runner import Drafts, ExpertTokens, LatePrograms, RunnerStatus
from jaxinfer.engine.step.buckets import Buckets, first_buckets, make_buckets
from jaxinfer.engine.step.packed import PackedStep
from jaxinfer.engine.step.packing import Packer
from jaxinfer.engine.step.plan import MULTI_TOKEN, StepKind, StepResult
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.drafting.speculate import Drafted
from jaxinfer.runner.experts.load import StepLoad
from jaxinfer.runner.platform.compiles import compile_counter
from jaxinfer.runner.platform.xla_options import Options
from jaxinfer.runner.programs.compiled import CompileProgress, MakingSeconds
from jaxinfer.runner.programs.growing import GrowingSizes
from jaxinfer.runner.programs.store import ProgramStore
from jaxinfer.runner.programs.table import Name
from jaxinfer.runner.results import SampledStep, is_here, memory_of
from jaxinfer.runner.stages.newest_tokens import NewestTokens
from jaxinfer.runner.stages.stage_device import StageDevice
from jaxinfer.runner.step.begun_rows import Passed
from jaxinfer.runner.step.forward import Forward
from jaxinfer.runner.step.stage import StagedModel

_LONG_RUN = 0.2
"""Seconds."""


class Forwarded(NamedTuple):
    """A forward pass in flight: what the last stage gives, hidden states of the last one here, and each stage's load of
    experts. drafted: of a step that drafts packed `Drafted`, of the first stage; at_last: and of the last."""

    hidden: jax.Array
    scored: jax.Array | None
    here: jax.Array
    loads: tuple[StepLoad, ...]
    drafted: jax.Array | None = None
    at_last: jax.Array | None = None


class StepInFlight(NamedTuple):
    """A step in flight, and the loads of experts after it."""

    sampled: SampledStep
    loads: tuple[StepLoad, ...]


class JaxRunner(DeviceRunner):
    """The stages of one engine, of which there is one unless its model is a pipeline.

    Steps run in the order of dispatch. A step is dispatched to all stages at once; each computes it when the one before
    has handed over its hidden states. Drawn tokens return to the first stage on the devices.
    """

    def __init__(
        self,
        model: LoadedModel | StagedModel,
        shapes: EngineShapes,
        *,
        options: Options | None = None,
        stores: Sequence[ProgramStore | None] | None = None,
        expert_placement_steps: int = 0,
    ):
        """stores: of each stage's programs."""
        super().__init__()
        model = StagedModel((model,)) if isinstance(model, LoadedModel) else model
        self.shapes = shapes
        every = zip(model.parts, model.stages, stores or [None] * len(model.parts), strict=True)
        self.stages = tuple(
            StageDevice(part, shapes, stage, options, store, expert_placement_steps) for part, stage, store in every
        )
        self._first, self._last = self.stages[0], self.stages[-1]
        # Where stages are on several hosts, results come to the first, which is that of the scheduler.
        self._reader = self._first if len(model.processes) > 1 and len(self.stages) > 1 else None
        self._newest = NewestTokens(self._first.nothing_given(), len(self.stages))
        self._compiles_at_ready = 0
        self.step_seconds: dict[tuple[StepKind, int], float] = {}
        self.sizes = GrowingSizes([stage.programs for stage in self.stages], shapes, self.step_seconds)

    @property
    def buckets(self) -> Buckets:
        """Sizes that steps may be packed for now."""
        return self.sizes.buckets

    @property
    def compiling(self) -> bool:
        """True while a program is made in the midst of a step."""
        return any(stage.programs.compiling for stage in self.stages)

    @property
    def late_programs(self) -> LatePrograms:
        """Programs that were compiled, or read from the cache, in the midst of a step."""
        late = [stage.programs.late for stage in self.stages]
        return LatePrograms(sum(one.count for one in late), sum(one.seconds for one in late))

    @property
    def making_seconds(self) -> MakingSeconds:
        """Seconds that making the programs of all stages took: tracing, and all together."""
        each = [stage.programs.seconds for stage in self.stages]
        return MakingSeconds(sum(one.tracing for one in each), sum(one.total for one in each))

    def warm_up(
        self,
        progress: CompileProgress | None = None,
        *,
        when: CompileTime = "all",
        compiled: Callable[[], object] = lambda: None,
    ) -> None:
        """Compiles programs and runs each once, so that no step waits for a compiler. compiled: is called in between,
        where hosts wait for each other. when: first: the programs of other sizes follow, if `sizes.start` is called;
        what is kept of them is read here."""
        if when != "lazy":
            self._make(self._wanted(when), progress)
            self.sizes.begin()
        compiled()
        if when != "lazy":
            self._run_all()
        for stage in self.stages:
            stage.begin_moves(compiled=when != "lazy")
        self._compiles_at_ready = compile_counter.count

    def _wanted(self, when: CompileTime) -> list[list[Name]]:
        """The programs of each stage that readiness waits for. Of several processes each needs what another packs
        for, which is therefore all."""
        sizes = make_buckets(self.shapes)
        every = [stage.programs.names_of(sizes) for stage in self.stages]
        if when == "all" or jax.process_count() > 1:
            return list(map(list, every))
        sizes = first_buckets(self.shapes)
        first = [{*stage.programs.names_of(sizes), *stage.programs.kept()} for stage in self.stages]
        return [[name for name in names if name in wanted] for names, wanted in zip(every, first, strict=True)]

    def _make(self, wanted: Sequence[Sequence[Name]], progress: CompileProgress | None) -> None:
        total, before = sum(map(len, wanted)), 0
        for stage, names in zip(self.stages, wanted, strict=True):
            several = progress is not None and len(self.stages) > 1
            told = _of_stage(progress, stage.stage.number, before, total) if progress and several else progress
            stage.programs.make(names, told)
            before += len(names)

    def write(self, call: Write) -> None:
        for stage in self.stages:
            stage.write(call)

    def run(self, step: PackedStep) -> StepInFlight:
        """Starts a step as a whole; one of MULTI_TOKEN in one program where one stage is all."""
        if step.kind not in MULTI_TOKEN or len(self.stages) > 1:
            return self.finish(step, self._forward(step), None)
        out, load = self._first.multi_token(step)
        return StepInFlight(SampledStep.begun(step, out.tokens, out.tokens, out.logprobs, out.counts), (load,))

    def begin(self, step: PackedStep) -> Forwarded:
        begun = self._forward(step)
        if begun.drafted is not None and is_here(begun.drafted):
            begun.drafted.copy_to_host_async()
        return begun

    def _forward(self, step: PackedStep) -> Forwarded:
        assert step.kind is not StepKind.MULTI_STEP  # which is one program, and has no phases
        given = self._newest.after(step.needs)
        if step.kind is not StepKind.SPECULATE:
            out, load = self._first.forward(step, given)
            return self._pass_on(out, load, out.rows, lambda stage, given: stage.forward(step, given))
        drafted = self._first.draft(step, given)
        out, load = self._first.verify(step, drafted)
        forwarded = self._pass_on(out, load, drafted, lambda stage, given: stage.verify(step, given))
        return forwarded._replace(drafted=drafted)

    def _pass_on(
        self,
        out: Forward,
        load: StepLoad,
        rows: jax.Array | None,
        forward: Callable[[StageDevice, Passed], tuple[Forward, StepLoad]],
    ) -> Forwarded:
        """From the first stage's part of a forward pass on: all of it, and `rows` as the last stage has them. rows: of
        `Passed`. forward: the part of another stage."""
        here, loads = out.hidden, [load]
        for stage in self.stages[1:]:
            given = stage.hand_over(Passed(out.hidden, rows))
            rows = given.rows
            out, load = forward(stage, given)
            here = out.hidden if stage.is_here else here
            loads.append(load)
        return Forwarded(out.hidden, out.scored, here, tuple(loads), at_last=rows)

    def drafts(self, step: PackedStep, begun: Forwarded) -> Drafts:
        found: Any = Drafted.unpacked(step.picked(np.asarray(begun.drafted)))
        return Drafts(found.drafts, found.count)

    def finish(self, step: PackedStep, begun: Forwarded, counts: np.ndarray | None) -> StepInFlight:
        if step.kind is StepKind.SPECULATE:
            return self._accepted(step, begun, counts)
        if not step.num_scored:
            return StepInFlight(SampledStep(step, begun.here, None), begun.loads)
        assert begun.scored is not None
        sampled = self._returned(step.index, *self._last.sample(step.scored_bucket, begun.hidden, begun.scored))
        return StepInFlight(SampledStep.begun(step, begun.here, *sampled), begun.loads)

    def _accepted(self, step: PackedStep, begun: Forwarded, counts: np.ndarray | None) -> StepInFlight:
        assert begun.at_last is not None
        most = np.full(step.num_rows, self.shapes.row_tokens - 1, np.int32) if counts is None else counts
        legal = step.in_rows(most, self.shapes.shards)
        out = self._last.accept(step, begun.hidden, begun.at_last, legal)
        sampled = self._returned(step.index, (out.tokens, out.logprobs, out.counts), out.back)
        return StepInFlight(SampledStep.begun(step, begun.here, *sampled), begun.loads)

    def _returned(self, step: int, results: Any, back: jax.Array | None) -> Any:
        """Return the last stage's results where they are read. back: array for the first of several stages, to which it
        is handed over."""
        if back is None:
            return results
        if self._reader is None:
            self._newest.add(step, self._first.hand_over(back))
            return results
        handed = self._reader.hand_over((results, back))
        self._newest.add(step, handed[1])
        return handed[0]

    def result(self, started: StepInFlight) -> StepResult:
        result = started.sampled.result()
        for stage, load in zip(self.stages, started.loads, strict=True):
            stage.collect(load)
        return result

    def status(self) -> RunnerStatus:
        """A reading, as `Runner.status`."""
        return RunnerStatus(
            tuple(memory_of(device) for stage in self.stages for device in stage.model.mesh.devices.flat),
            compile_counter.count - self._compiles_at_ready,
            _joined([load for stage in self.stages if (load := stage.expert_load()) is not None]),
        )

    def reset(self) -> None:
        """Makes blocks and slot state anew, with the programs of the first time. Raises where a device is gone.

        The old arrays of all stages go first, which leaves room for the new.
        """
        self._newest.clear()
        for stage in self.stages:
            stage.drop()
        for stage in self.stages:
            stage.reset()
        for stage in self.stages:
            stage.wait()

    def close(self) -> None:
        """Drops the devices' arrays."""
        self.sizes.stop()
        for stage in self.stages:
            stage.close()

    def _run_all(self) -> None:
        """Runs every program that is there over padding; with few sizes, forward passes over a row, too."""
        packer = Packer(self.shapes)
        self.write(InitSlots(packer.no_slots()))
        forwarded = None
        for kind, size in self._last.table.names_of(self.buckets):
            if kind == "sample":
                assert forwarded is not None
                self._warm_sample(size, forwarded)
            elif kind == "masks":
                self.write(SetMasks(packer.no_masks(size)))
            elif kind == "history":
                self.write(SetHistory(packer.no_history(size)))
            elif kind == "copies":
                self.write(CopyBlocks(packer.no_copies()))
            elif kind == "accept":
                self._warm_drafts(packer, size)
            elif kind not in ("admit", "draft", "verify"):
                step = packer.padding(StepKind(kind), size)
                if step.kind in MULTI_TOKEN:
                    self.result(self.run(step))
                else:
                    forwarded = self._warmed(step, packer)
        if self.shapes.few_sizes:
            for stage in self.stages:
                stage.forget_load()  # of the rows that were timed

    def _warm_sample(self, size: int, begun: Forwarded) -> None:
        """Hands over what it draws, too: how arrays cross hosts is agreed when they first do."""
        assert begun.scored is not None
        jax.block_until_ready(self._returned(0, *self._last.sample(size, begun.hidden, begun.scored)))
        self._newest.clear()

    def _warm_drafts(self, packer: Packer, rows: int) -> None:
        step = packer.padding(StepKind.SPECULATE, rows)
        self.result(self.finish(step, self.begin(step), None))
        self._newest.clear()

    def _warmed(self, step: PackedStep, packer: Packer) -> Forwarded:
        """Runs a forward pass over padding, and notes how long one takes: a second, unless the first is so long that
        what a program does once is little of it.

        With few sizes padding costs nothing, and the second has a row. More rows would take longer in each program
        alike, so that is left out, as the times are there to be compared (`FastForward`).
        """
        forwarded, seconds = self._timed(step)
        if self.shapes.few_sizes:
            seconds = self._timed(packer.one_row(step.kind, step.bucket))[1]
        # Clocks differ: of several hosts each must run a program as often as the others.
        elif seconds <= _LONG_RUN or jax.process_count() > 1:
            seconds = self._timed(step)[1]
        self.step_seconds[step.kind, step.bucket] = seconds
        return forwarded

    def _timed(self, step: PackedStep) -> tuple[Forwarded, float]:
        """A forward pass, and its seconds."""
        start = time.perf_counter()
        forwarded = self.begin(step)
        forwarded.here.block_until_ready()
        return forwarded, time.perf_counter() - start


def _of_stage(progress: CompileProgress, number: int, before: int, total: int) -> CompileProgress:
    """Tells of the programs of a stage as of some of all."""

    def tell(program: str, done: int, _: int, seconds: float, cached: bool) -> None:
        progress(f"{program} of stage {number}", before + done, total, seconds, cached)

    return tell


def _joined(loads: Sequence[ExpertTokens]) -> ExpertTokens | None:
    """Join the loads of all stages, one layer after another; None if there are none."""
    if not loads:
        return None
    width = max(load.experts.shape[1] for load in loads)
    experts = [np.pad(load.experts, ((0, 0), (0, width - load.experts.shape[1]))) for load in loads]
    split = [load.devices for load in loads if load.devices is not None]
    return ExpertTokens(np.concatenate(experts), np.concatenate(split) if split else None, sum(x.placed for x in loads))
