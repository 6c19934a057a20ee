"""Runners that are handed plans: tests look at plans, fail by them, and change results row by row."""

from typing import Any

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.in_flight import BeforeSampling, InFlightSteps
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.engine.step.plan import StepPlan, StepResult
from jaxinfer.engine.step.shapes import EngineShapes


class PlanDriven(SimulatedRunner):
    """To be overridden: `dispatch` and `collect`, whose handles are its own. core: whose plans it gets."""

    core: EngineCore

    def __init__(self, shapes: EngineShapes, **options: Any):
        super().__init__(shapes, **options)
        self._steps = InFlightSteps(self)

    def dispatch(self, plan: StepPlan, before_sampling: BeforeSampling | None = None) -> Any:
        return self._steps.start(plan, before_sampling)

    def collect(self, handle: Any) -> StepResult:
        return super().collect(handle) if handle is not None else self._steps.read(None)


class PlanSteps(InFlightSteps):
    """Steps of a PlanDriven runner."""

    def __init__(self, runner: PlanDriven):
        super().__init__(runner)
        self._driven = runner

    def start(self, plan: StepPlan, before_sampling: BeforeSampling | None = None) -> Any:
        return self._driven.dispatch(plan, before_sampling)

    def read(self, handle: Any) -> StepResult:
        return self._driven.collect(handle)


def hand_over_plans(core: EngineCore) -> None:
    """Has the core's runner get plans, where it can."""
    if isinstance(core.runner, PlanDriven):
        core.runner.core = core
        core.in_flight = PlanSteps(core.runner)
