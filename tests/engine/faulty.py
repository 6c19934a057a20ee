"""A simulated device that does wrong where a test says so, and an engine on it."""

from collections.abc import Callable
from itertools import product
from typing import Any, Literal

import numpy as np

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.in_flight import BeforeSampling
from jaxinfer.engine.step.plan import StepPlan, StepResult
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.engine.types import FinishReason, GenerateRequest
from tests.engine.ledger import check_blocks, check_slots, unread
from tests.engine.small import Got, RecordingRunner, ask, right, run, small_core, small_shapes, step, tokens_of

FaultAt = Literal["dispatch", "dispatched", "collect", "collected"]
"""Where a step fails: before or after it was handed to the device, before or after the device ran it."""
FAULTS: tuple[FaultAt, ...] = ("dispatch", "dispatched", "collect", "collected")
_WRITTEN_BY_NOBODY = -(2**30)


class StepBroke(RuntimeError):
    """What a failing step raises; its text must reach no client."""


class FaultyRunner(RecordingRunner):
    """A device that fails steps, gives rows fewer tokens than they ask for, and keeps nothing that nobody may read.

    After each step it overwrites what no later step may read, unless a thread runs the steps.

    fails: asked at each of FAULTS, with the plan, whether the step fails there. resets: how often it was reset.
    finite_tokens: by slot, after how many tokens of a step the logits of its row are not finite.
    """

    fails: Callable[[FaultAt, StepPlan], bool] = staticmethod(lambda at, plan: False)
    resets = 0

    def __init__(self, shapes: EngineShapes, **options: Any):
        super().__init__(shapes, **options)
        self.finite_tokens: dict[int, int] = {}

    def dispatch(self, plan: StepPlan, before_sampling: BeforeSampling | None = None) -> Any:
        self._maybe("dispatch", plan)
        handle = super().dispatch(plan, before_sampling)
        self._maybe("dispatched", plan)
        if self._thread is not None:
            return plan, handle, []
        places = product(range(self.shapes.shards), range(len(self.shapes.groups)))
        return plan, handle, [unread(self.core, group, shard) for shard, group in places]

    def collect(self, handle: Any) -> StepResult:
        plan, step, unread_positions = handle
        self._maybe("collect", plan)
        result = super().collect(step)
        for blocks, positions in zip(self.kv, unread_positions, strict=False):
            blocks[positions] = _WRITTEN_BY_NOBODY
        self._maybe("collected", plan)
        return self._finite(plan, result) if self.finite_tokens else result

    def reset(self) -> None:
        self.resets += 1
        super().reset()

    def fail_once(self, at: FaultAt, *, after: int = 0) -> None:
        """Lets a step fail that comes to `at`: the next, or one `after` so many."""
        passing = iter(range(after))

        def fails(now: FaultAt, plan: StepPlan) -> bool:
            failed = now == at and next(passing, None) is None
            if failed:
                self.fail_never()
            return failed

        self.fails = fails

    def fail_never(self) -> None:
        self.fails = lambda at, plan: False

    def _maybe(self, at: FaultAt, plan: StepPlan) -> None:
        if self.fails(at, plan):
            raise StepBroke("in /a/path/of/the/server")

    def _finite(self, plan: StepPlan, result: StepResult) -> StepResult:
        most = plan.samples.copy()
        for row, slot in enumerate(plan.slots.tolist()):
            most[row] = min(most[row], self.finite_tokens.get(slot, most[row]))
        finite = most == plan.samples
        return result._replace(counts=np.where(finite, result.counts, most), finite=finite)


def faulty_core(ahead: int = 1, shapes: EngineShapes | None = None, **options: Any) -> tuple[EngineCore, FaultyRunner]:
    runner = FaultyRunner(shapes or small_shapes())
    return small_core(runner, ahead=ahead, **options), runner


def run_checked(core: EngineCore, got: Got | None = None) -> Got:
    """Steps until nothing is left; after each step the block ledger, after each fault that nobody holds anything."""
    got = {} if got is None else got
    for _ in range(3000):
        if not core.has_work():
            break
        faults = core.stats().core.step_faults
        step(core, got)
        check_blocks(core)
        check_slots(core)
        if core.stats().core.step_faults > faults:
            check_empty(core)
    return run(core, got)


def check_empty(core: EngineCore) -> None:
    pools = core.scheduler.state.kv.pools
    assert all(pool.num_free == pool.num_blocks - 1 for pool in pools)
    assert core.scheduler.state.table.num_taken == core.scheduler.state.in_flight == 0
    assert not core.scheduler.state.running


def check_right(core: EngineCore, got: Got, requests: list[GenerateRequest]) -> None:
    """Every stream is what the rules say, once."""
    for request in requests:
        for index in range(request.sampling.n):
            deltas = got[request.request_id, index]
            assert tokens_of(deltas) == right(core, request, index)
            assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [FinishReason.LENGTH]


def mixed(count: int = 7) -> list[GenerateRequest]:
    """More sequences than slots, equal prompts, prompts of several chunks, some of one token."""
    return [ask(f"r{i}", [1, 5, 9, 23][i % 4], 3 + 2 * i, n=1 + i % 3) for i in range(count)]
