"""SimulatedRunner: a device in NumPy that keeps the step contract honest, and costs what it is told to.

It stores token ids where a model stores keys and values, and draws each next token from what it reads
back through the block tables: a wrong block, a block reused too early or a host array that changed under
a step in flight gives a wrong token. It reads the same packed arrays that device programs read.
"""

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from jaxinfer.engine.device.calls import CopyBlocks, InitSlots, SetHistory, SetMasks, Write
from jaxinfer.engine.device.device_runner import DeviceRunner
from jaxinfer.engine.device.runner import DeviceMemory, Drafts, LatePrograms, RunnerStatus
from jaxinfer.engine.device.simulated_pipeline import SimulatedPipeline
from jaxinfer.engine.device.simulated_shard import SimulatedShard
from jaxinfer.engine.step.buckets import make_buckets
from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.packed import PackedStep
from jaxinfer.engine.step.plan import MULTI_TOKEN, LogprobArrays, StepKind, StepResult
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.sampling import MAX_LOGPROBS


class _Step(NamedTuple):
    writes: list[Write]
    packed: PackedStep
    deadline: float
    legal: np.ndarray | None = None


class SimulatedRunner(DeviceRunner):
    """A Runner without a device.

    step_seconds: None runs a step when it is collected; else a thread runs it and its result is there
    that long after the step before it (or its own dispatch, where the device was idle). `draws=False`
    makes every token 0 and skips all reading, for measuring the host alone. hit_rate: how often a draft is what its
    position draws. pipeline: has a clock that runs by results, and takes the place of `step_seconds`.
    """

    # There is nothing to compile.
    compiling = False
    late_programs = LatePrograms()
    # Nor is a step of any kind shorter than another.
    step_seconds: Mapping[tuple[StepKind, int], float] = MappingProxyType({})

    def __init__(
        self,
        shapes: EngineShapes,
        *,
        step_seconds: float | None = None,
        draws: bool = True,
        hit_rate: float = 0.0,
        pipeline: SimulatedPipeline | None = None,
    ):
        super().__init__()
        self.shapes = shapes
        self.buckets = make_buckets(shapes)
        self._layouts = Layouts(shapes)
        self._writes: list[Write] = []
        self._draws = draws
        self._hit_rate = hit_rate
        self._pipeline = pipeline
        self._step_seconds = step_seconds
        self._thread: threading.Thread | None = None
        self._start()

    def write(self, call: Write) -> None:
        self._writes.append(call)

    def begin(self, step: PackedStep) -> float:
        """When the step will be done: `finish` starts all of it, but the device is busy with it from now on."""
        return self._done_at(step)

    def drafts(self, step: PackedStep, begun: float) -> Drafts:
        """None: nobody knows here what will be drawn."""
        none = np.zeros(step.num_rows, np.int32)
        return Drafts(np.zeros((step.num_rows, self.shapes.row_tokens - 1), np.int32), none)

    def finish(self, step: PackedStep, begun: float, counts: np.ndarray | None) -> _Step:
        legal = None if counts is None else step.in_rows(counts, self.shapes.shards)
        started, self._writes = _Step(self._writes, step, begun, legal), []
        if self._thread is not None:
            self._work.put(started)
        return started

    def _done_at(self, step: PackedStep) -> float:
        if self._pipeline is not None:
            return self._pipeline.begin(step, self._num_tokens(step))
        # Absolute: a late wake-up delays one step's result and not the device.
        self._busy_until = max(time.perf_counter(), self._busy_until) + (self._step_seconds or 0.0)
        return self._busy_until

    def result(self, started: _Step) -> StepResult:
        if self._pipeline is not None:
            self._pipeline.wait(started.deadline)
        if self._thread is None:
            return self._run(started)
        result = self._done.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def reset(self) -> None:
        """Lets the steps in flight end, and forgets them with everything that was written."""
        self.close()
        self._start()

    @property
    def kv(self) -> list[np.ndarray]:
        """Arrays that stand for KV blocks, of all shards."""
        return [blocks for part in self._parts for blocks in part.kv]

    def status(self) -> RunnerStatus:
        """A reading: arrays that stand for KV blocks are the memory, of a device a shard."""
        used = [sum(blocks.nbytes for blocks in part.kv) for part in self._parts]
        return RunnerStatus(tuple(DeviceMemory(size, size, size) for size in used))

    def close(self) -> None:
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _start(self) -> None:
        self._parts = [SimulatedShard(self.shapes, self._layouts, self._hit_rate) for _ in range(self.shapes.shards)]
        self._writes.clear()
        self._busy_until = 0.0
        self._work: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[StepResult | BaseException] = queue.SimpleQueue()
        if self._step_seconds is not None:
            self._thread = threading.Thread(target=self._run_thread, name="simulated-device", daemon=True)
            self._thread.start()

    def _run_thread(self) -> None:
        while (step := self._work.get()) is not None:
            try:
                result: StepResult | BaseException = self._run(step)
            except BaseException as error:
                result = error
            time.sleep(max(0.0, step.deadline - time.perf_counter()))
            self._done.put(result)

    def _run(self, step: _Step) -> StepResult:
        for call in step.writes:
            self._write(call)
        packed = step.packed
        sections = zip(self._parts, self._sections(packed.array), strict=True)
        if packed.kind in MULTI_TOKEN:
            if not self._draws:
                return packed.result_of_rows(*self._nothing(packed))
            legal = [None] * self.shapes.shards if step.legal is None else self._sections(step.legal)
            each = zip(sections, legal, strict=True)
            given = _joined([part.multi_token(packed, own, most) for (part, own), most in each])
            logprobs = _fake_logprobs(packed.picked(given[0])) if packed.logprobs else None
            return packed.result_of_rows(*given, logprobs=logprobs)
        if not self._draws:
            return packed.result_of_scored(np.zeros(packed.num_scored, np.int32), None)
        given = [part.forward(packed, section) for part, section in sections]
        drawn = [[column[: packed.scored_bucket] for column in columns] for columns in given]
        tokens, targets = map(packed.picked, _joined(drawn))
        logprobs = _fake_logprobs(np.where(targets >= 0, targets, tokens)) if packed.logprobs else None
        return packed.result_of_scored(tokens, logprobs)

    def _write(self, call: Write) -> None:
        match call:
            case InitSlots(packed):
                for part, section in zip(self._parts, self._sections(packed), strict=True):
                    part.init_slots(section)
            case SetMasks(packed):
                for part, section in zip(self._parts, self._sections(packed.array), strict=True):
                    part.set_masks(packed.bucket, section)
            case CopyBlocks(packed):
                for part, section in zip(self._parts, self._sections(packed), strict=True):
                    part.copy_blocks(section)
            case SetHistory():
                """Drafts come from nowhere here."""

    def _nothing(self, packed: PackedStep) -> "_Columns":
        """Token 0 as often as was planned, or as hits allow."""
        layout = self._layouts.multi_token(packed.bucket)
        counts = np.concatenate([layout.views(section)["counts"] for section in self._sections(packed.array)])
        tokens = np.zeros((len(counts), self.shapes.row_tokens), np.int32)
        if packed.kind is StepKind.MULTI_STEP:
            return tokens, counts, None, None, None
        drafted = np.maximum(counts - 1, 0)
        kept = np.minimum(drafted, round(self._hit_rate * drafted.max(initial=0)))
        return tokens, np.minimum(counts, 1 + kept), drafted, kept, np.zeros_like(kept)

    def _num_tokens(self, step: PackedStep) -> int:
        """Return the number of tokens of a step, all shards together."""
        if step.kind in MULTI_TOKEN:
            views = (self._layouts.multi_token(step.bucket).views(section) for section in self._sections(step.array))
            return sum(int(view["counts"].sum()) for view in views)
        if step.kind is StepKind.DECODE:
            return step.num_rows
        views = (self._layouts.mixed(step.bucket).views(section) for section in self._sections(step.array))
        return sum(int(view["counts"].sum()) for view in views)

    def _sections(self, array: np.ndarray) -> list[np.ndarray]:
        return [array] if self.shapes.shards == 1 else np.split(array, self.shapes.shards)


_Drafts = np.ndarray | None
_Columns = tuple[np.ndarray, np.ndarray, _Drafts, _Drafts, _Drafts]
"""Columns of a result, as `PackedStep.result_of_rows` takes them."""


def _joined(shards: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Each column of all shards, one after another."""
    return [np.concatenate(columns) for columns in zip(*shards, strict=True)]


def _fake_logprobs(tokens: np.ndarray) -> LogprobArrays:
    """Numbers that tell which token they belong to."""
    top = tokens[..., None] + np.arange(MAX_LOGPROBS)
    return LogprobArrays(
        logprobs=-(tokens % 97).astype(np.float32),
        ranks=(tokens % 5 + 1).astype(np.int32),
        top_ids=top.astype(np.int32),
        top_logprobs=-(top % 97).astype(np.float32),
    )
