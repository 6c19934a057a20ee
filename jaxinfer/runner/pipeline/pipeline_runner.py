"""PipelineRunner: runs steps through the stages of a pipeline."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxinfer.engine.device.calls import CopyBlocks, InitSlots, SetHistory, SetMasks, Write
from jaxinfer.engine.device.device_runner import DeviceRunner
from jaxinfer.engine.device.runner import Drafts, ExpertTokens, LatePrograms, RunnerStatus
from jaxinfer.engine.step.packed import PackedBurst, PackedForward
from jaxinfer.engine.step.packing import Packer
from jaxinfer.engine.step.plan import StepKind, StepResult
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.compiles import compile_counter
from jaxinfer.runner.expert_load import StepLoad
from jaxinfer.runner.pipeline.absent import has_devices_here
from jaxinfer.runner.pipeline.absent_stage import AbsentStage
from jaxinfer.runner.pipeline.newest_tokens import NewestTokens
from jaxinfer.runner.pipeline.stage import Stage, StagedModel
from jaxinfer.runner.pipeline.stage_device import LastStage, StageDevice
from jaxinfer.runner.pipeline.stage_forward import Passed, StageForwarded
from jaxinfer.runner.program_store import ProgramStore
from jaxinfer.runner.programs import CompileProgress, MakingSeconds
from jaxinfer.runner.results import BurstStep, SampledStep, is_here, memory_of
from jaxinfer.runner.speculate import Drafted
from jaxinfer.runner.xla_options import Options


class StagesForwarded(NamedTuple):
    """A forward pass in flight: what the last stage gives, what the last one here gives, and each stage's load of
    experts."""

    last: StageForwarded
    here: jax.Array
    loads: tuple[StepLoad, ...]


class StagesDrafted(NamedTuple):
    """Drafts, and a forward pass over them, in flight. drafted: packed `Drafted`, of the first stage, and of the
    last."""

    drafted: jax.Array
    at_last: jax.Array
    forwarded: StagesForwarded


class StagesInFlight(NamedTuple):
    """A step in flight, and the loads of experts after it."""

    sampled: SampledStep | BurstStep
    loads: tuple[StepLoad, ...]


class PipelineRunner(DeviceRunner):
    """A runner like `JaxRunner`, over stages. A step is dispatched to all of them at once; each computes it when the
    one before has handed over its hidden states. Drawn tokens return to the first stage on the devices."""

    def __init__(
        self,
        model: StagedModel,
        shapes: EngineShapes,
        *,
        options: Options | None = None,
        stores: Sequence[ProgramStore | None] | None = None,
        expert_placement_steps: int = 0,
    ):
        """stores: of each stage's programs."""
        super().__init__()
        self.shapes = shapes
        every = zip(model.parts, model.stages, stores or [None] * len(model.parts), strict=True)
        self.stages = tuple(
            _kind_of(part, stage)(part, shapes, stage, options, store, expert_placement_steps)
            for part, stage, store in every
        )
        self._here = [stage for stage in self.stages if isinstance(stage, StageDevice)]
        first, last = self.stages[0], self.stages[-1]
        assert isinstance(last, LastStage | AbsentStage)
        self._last = last
        # Where stages are on several hosts, results come to the first, which is that of the scheduler.
        self._reader = first if len(_processes(model)) > 1 else None
        self._newest = NewestTokens(first.nothing_given(), len(self.stages))
        self._compiles_at_ready = 0
        self.step_seconds: dict[tuple[StepKind, int], float] = {}

    @property
    def compiling(self) -> bool:
        """True while a program is made in the midst of a step (`lazy_compile`)."""
        return any(stage.programs.compiling for stage in self._here)

    @property
    def late_programs(self) -> LatePrograms:
        """Programs that were compiled, or read from the cache, in the midst of a step (`lazy_compile`)."""
        late = [stage.programs.late for stage in self._here]
        return LatePrograms(sum(one.count for one in late), sum(one.seconds for one in late))

    @property
    def making_seconds(self) -> MakingSeconds:
        """Seconds that making the programs of all stages took: tracing, and all together."""
        each = [stage.programs.seconds for stage in self._here]
        return MakingSeconds(sum(one.tracing for one in each), sum(one.total for one in each))

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
            total, before = sum(len(stage.programs.names) for stage in self._here), 0
            for stage in self._here:
                stage.programs.compile_all(progress and _of_stage(progress, stage.stage.number, before, total))
                before += len(stage.programs.names)
        compiled()
        if not lazy:
            self._run_all()
            for stage in self.stages:
                stage.warm_up_moves()
        self._compiles_at_ready = compile_counter.count

    def write(self, call: Write) -> None:
        for stage in self.stages:
            stage.write(call)

    def forward(self, step: PackedForward) -> StagesForwarded:
        out, load = self.stages[0].forward(step, self._newest.after(step.needs))
        return self._pass_on(out, load, out.rows, lambda stage, given: stage.forward(step, given))[0]

    def _pass_on(
        self,
        out: StageForwarded,
        load: StepLoad,
        rows: jax.Array | None,
        forward: Callable[[StageDevice | AbsentStage, Passed], tuple[StageForwarded, StepLoad]],
    ) -> tuple[StagesForwarded, jax.Array | None]:
        """From the first stage's part of a forward pass on: all of it, and `rows` as the last stage has them. rows: of
        `Passed`. forward: the part of another stage."""
        here, loads = out.hidden, [load]
        for stage in self.stages[1:]:
            given = stage.hand_over(Passed(out.hidden, rows))
            rows = given.rows
            out, load = forward(stage, given)
            here = out.hidden if stage.is_here else here
            loads.append(load)
        return StagesForwarded(out, here, tuple(loads)), rows

    def sample(self, step: PackedForward, begun: StagesForwarded) -> StagesInFlight:
        here, loads = begun.here, begun.loads
        if not step.num_scored:
            return StagesInFlight(SampledStep(step, here, None), loads)
        sampled = self._returned(step.index, *self._last.sample(step.scored_bucket, begun.last))
        return StagesInFlight(SampledStep.begun(step, here, sampled), loads)

    def burst(self, step: PackedBurst) -> StagesInFlight:
        every = np.full(step.bucket * self.shapes.shards, self.shapes.burst - 1, np.int32)
        return self._accept(step, self._draft(step), every)

    def draft(self, step: PackedBurst) -> StagesDrafted:
        drafted = self._draft(step)
        if is_here(drafted.drafted):
            drafted.drafted.copy_to_host_async()
        return drafted

    def drafts(self, step: PackedBurst, begun: StagesDrafted) -> Drafts:
        found: Any = Drafted.unpacked(step.of_rows(np.asarray(begun.drafted)))
        return Drafts(found.drafts, found.count)

    def verify(self, step: PackedBurst, begun: StagesDrafted, counts: np.ndarray) -> StagesInFlight:
        return self._accept(step, begun, step.in_rows(counts, self.shapes.shards))

    def _draft(self, step: PackedBurst) -> StagesDrafted:
        first = self.stages[0]
        drafted = first.draft(step, self._newest.after(step.needs))
        out, load = first.verify(step, drafted)
        forwarded, rows = self._pass_on(out, load, drafted, lambda stage, given: stage.verify(step, given))
        assert rows is not None
        return StagesDrafted(drafted, rows, forwarded)

    def _accept(self, step: PackedBurst, drafted: StagesDrafted, legal: np.ndarray) -> StagesInFlight:
        forwarded = drafted.forwarded
        out, back = self._last.accept(step, forwarded.last.hidden, drafted.at_last, legal)
        given = self._returned(step.index, (out.tokens, out.counts, out.logprobs), back)
        return StagesInFlight(BurstStep.begun(step, forwarded.here, *given), forwarded.loads)

    def _returned(self, step: int, results: Any, back: jax.Array) -> Any:
        """Return the last stage's results where they are read. back: array for the first stage, to which it is handed
        over."""
        if self._reader is None:
            back = self.stages[0].hand_over(back)
        else:
            results, back = self._reader.hand_over((results, back))
        self._newest.add(step, back)
        return results

    def result(self, started: StagesInFlight) -> StepResult:
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
        """Makes blocks and slot state anew, with the programs of the first time. Raises where a device is gone."""
        self._newest.clear()
        for stage in self.stages:
            stage.drop()
        for stage in self.stages:
            stage.reset()
        for stage in self.stages:
            stage.wait()

    def close(self) -> None:
        """Drops the devices' arrays."""
        for stage in self.stages:
            stage.kv = ()

    def _run_all(self) -> None:
        """Runs every program over padding alone."""
        packer = Packer(self.shapes)
        self.write(InitSlots(packer.no_slots()))
        self.write(CopyBlocks(packer.no_copies()))
        forwarded = None
        for kind, size in self._last.table.names:
            if kind == "masks":
                self.write(SetMasks(packer.no_masks(size)))
            elif kind == "history":
                self.write(SetHistory(packer.no_history(size)))
            elif kind == "accept":
                self._warm_drafts(packer, size)
            elif kind == "sample":
                assert forwarded is not None
                self._warm_sample(size, forwarded.last)
            elif kind in ("decode", "mixed"):
                step = packer.padding(StepKind(kind), size)
                assert isinstance(step, PackedForward)
                forwarded = self._timed(step)

    def _warm_sample(self, size: int, last: StageForwarded) -> None:
        """Hands over what it draws, too: how arrays cross hosts is agreed when they first do."""
        results = self._last.sample(size, last)
        (self._reader or self.stages[0]).hand_over(results)[1].block_until_ready()

    def _warm_drafts(self, packer: Packer, rows: int) -> None:
        step = packer.padding(StepKind.SPECULATE, rows)
        assert isinstance(step, PackedBurst)
        self.result(self.burst(step))
        self._newest.clear()

    def _timed(self, step: PackedForward) -> StagesForwarded:
        """Runs a forward pass over padding through all stages twice, and notes how long the second takes."""
        for _ in range(2):
            start = time.perf_counter()
            forwarded = self.forward(step)
            forwarded.here.block_until_ready()
            self.step_seconds[step.kind, step.bucket] = time.perf_counter() - start
        return forwarded


def _kind_of(model: LoadedModel, stage: Stage) -> type[StageDevice | AbsentStage]:
    if not has_devices_here(model):
        return AbsentStage
    return LastStage if stage.is_last else StageDevice


def _processes(model: StagedModel) -> set[int]:
    """Whose devices the stages are on."""
    return {device.process_index for part in model.parts for device in part.mesh.devices.flat}


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
