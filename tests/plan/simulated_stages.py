"""An engine over a simulated pipeline whose stages and hand-overs take what a StagedStep says."""

import random
from collections.abc import Callable
from typing import NamedTuple

from jaxinfer.config import CacheConfig, SchedulerConfig
from jaxinfer.engine.client.sequence_ids import SequenceIds
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.engine.device.simulated_pipeline import SimulatedPipeline, StageRun
from jaxinfer.engine.step.packed import PackedStep
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.engine.types import GenerateRequest, ModelInfo
from jaxinfer.plan.pipeline import StagedStep
from jaxinfer.sampling import SamplingParams
from jaxinfer.speculation import Speculation

_BLOCK, _VOCABULARY = 16, 1000

Seconds = Callable[[int], StagedStep]
"""What a step of so many tokens takes."""


class UnevenPipeline(SimulatedPipeline):
    """Stages that take each their own time, and hand over one array after another."""

    def __init__(self, stages: int, seconds: Seconds):
        super().__init__(stages, lambda tokens: 0.0)
        self._of_step = seconds
        self._handed = [0.0] * stages

    def begin(self, step: PackedStep, tokens: int) -> float:
        taken = self._of_step(tokens)
        ready = done = max(self.now, self._ends.get(step.needs, 0.0))
        for stage, seconds in enumerate(taken.stages):
            begin = max(ready, self._free[stage])
            self._free[stage] = done = begin + seconds
            ready = self._handed[stage] = max(done, self._handed[stage]) + taken.hand_overs[stage]
            self.runs.append(StageRun(step.index, stage, begin, done))
        self._ends[step.index] = ready
        return done


def of_one(seconds: Callable[[int], float]) -> Seconds:
    """A single stage, which hands nothing over."""
    return lambda tokens: StagedStep((seconds(tokens),), (0.0,))


class Served(NamedTuple):
    """Of a time in which as many requests are under way as may be. itl: mean seconds between two tokens of a request.
    waits: share of the time in which a stage computes nothing, on average over stages."""

    tokens_per_second: float
    itl: float
    ttft: float
    waits: float


def serve(
    seconds: Seconds,
    stages: int,
    budget: int,
    rows: int,
    tokens_in: int,
    tokens_out: int,
    requests: int,
    *,
    even: bool = False,
    drafting: Speculation | None = None,
    hit_rate: float = 0.0,
) -> Served:
    """Requests that all wait from the beginning, of `tokens_out` on average: half as many to half more, so that they
    do not end together, or all as many (`even`). Counted is the middle half of the time until the last one begins.
    hit_rate: of drafts after kept ones, how many are kept."""
    rng, spread = random.Random(0), 0 if even else tokens_out // 2
    length = tokens_in + tokens_out + spread
    blocks = 1 + rows * -(-length // _BLOCK)
    kept, more = (KVGroup(None, blocks),), {"stages": stages, "drafting": drafting}
    shapes = EngineShapes(rows, budget, rows, length, _BLOCK, kept, _VOCABULARY, **more)
    pipeline = UnevenPipeline(stages, seconds)
    core = EngineCore(
        SimulatedRunner(shapes, draws=drafting is not None, hit_rate=hit_rate, pipeline=pipeline),
        ModelInfo("simulated", length, _VOCABULARY, rows, _BLOCK, blocks),
        scheduler=SchedulerConfig(max_num_seqs=rows, max_waiting=requests),
        cache=CacheConfig(enable_prefix_caching=False),
        clock=pipeline.clock,
    )
    for number in range(requests):
        params = SamplingParams(max_tokens=tokens_out + rng.randint(-spread, spread), ignore_eos=True, seed=0)
        core.add_request(GenerateRequest(str(number), [1] * tokens_in, params))
    times, full = _times(core, pipeline)
    core.close()
    start, end = 0.25 * full, 0.75 * full
    counted = sum(start < time <= end for each in times.values() for time in each)
    gaps = [
        (each[-1] - each[0]) / (len(each) - 1) for each in times.values() if len(each) > 1 and (even or each[0] > start)
    ]
    busy = pipeline.busy(start, end)
    itl = sum(gaps) / len(gaps) if gaps else 0.0
    return Served(counted / (end - start), itl, min(each[0] for each in times.values()), 1 - sum(busy) / len(busy))


def _times(core: EngineCore, pipeline: UnevenPipeline) -> tuple[dict[str, list[float]], float]:
    """When each request's tokens came, and when the last request that had waited began; of none that waited the end."""
    names, times, full = SequenceIds(), dict[str, list[float]](), 0.0
    while core.has_work():
        for delta in names.expand(core.step()):
            times.setdefault(delta.request_id, []).extend([pipeline.now] * len(delta.token_ids))
        if core.num_waiting:
            full = pipeline.now
    return times, full or pipeline.now
