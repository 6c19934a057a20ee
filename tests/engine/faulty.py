"""A simulated device whose steps fail when they are told to."""

from collections.abc import Callable
from typing import Any, Literal

from jaxinfer.engine.plan import StepPlan, StepResult
from jaxinfer.engine.simulated import SimulatedRunner
from tests.engine.ledger import PoisoningRunner

FaultAt = Literal["dispatch", "dispatched", "collect", "collected"]
"""Where a step fails: before or after it was handed to the device, before or after the device ran it."""
FAULTS: tuple[FaultAt, ...] = ("dispatch", "dispatched", "collect", "collected")


class StepBroke(RuntimeError):
    """What a failing step raises; its text must reach no client."""


class FaultyThread(SimulatedRunner):
    """fails: asked at each of FAULTS, with the plan, whether the step fails there. resets: how often it was reset."""

    fails: Callable[[FaultAt, StepPlan], bool] = staticmethod(lambda at, plan: False)
    resets = 0

    def dispatch(self, plan: StepPlan) -> Any:
        self._maybe("dispatch", plan)
        handle = super().dispatch(plan)
        self._maybe("dispatched", plan)
        return plan, handle

    def collect(self, handle: Any) -> StepResult:
        plan, step = handle
        self._maybe("collect", plan)
        result = super().collect(step)
        self._maybe("collected", plan)
        return result

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


class FaultyRunner(FaultyThread, PoisoningRunner):
    """The same without a thread of its own: pages that nobody holds are overwritten after each step."""
