"""InFlightSteps: steps that a runner was given and whose results have not been read."""

from collections import deque
from typing import Any

from jaxinfer.engine.device.runner import Runner
from jaxinfer.engine.step.plan import StepPlan, StepResult


class StepFault(Exception):
    """A runner failed to dispatch or to collect a step; `__cause__` says how. Its text names the type of that error."""


class InFlightSteps:
    """Steps in the order of their dispatch. dispatched, collected: how many since the start, discarded ones in both."""

    def __init__(self, runner: Runner):
        self._runner = runner
        self._plans: deque[StepPlan] = deque()
        self._handles: deque[Any] = deque()
        self.dispatched = 0
        self.collected = 0

    def __len__(self) -> int:
        return len(self._plans)

    def dispatch(self, plan: StepPlan) -> None:
        """Starts a step. Raises StepFault."""
        self._plans.append(plan)
        self.dispatched += 1
        try:
            self._handles.append(self._runner.dispatch(plan))
        except Exception as error:
            raise StepFault(type(error).__name__) from error

    def collect(self) -> tuple[StepPlan, StepResult]:
        """Waits for the oldest step, which stays in flight where it failed. Raises StepFault."""
        try:
            result = self._runner.collect(self._handles[0])
        except Exception as error:
            raise StepFault(type(error).__name__) from error
        self._handles.popleft()
        self.collected += 1
        return self._plans.popleft(), result

    def discard(self) -> list[StepPlan]:
        """Discards every step: their results will not be read."""
        plans = list(self._plans)
        self._plans.clear()
        self._handles.clear()
        self.collected = self.dispatched
        return plans
