"""InFlightSteps: steps that a runner was given and whose results have not been read."""

from collections import deque
from typing import Any

import numpy as np

from jaxinfer.engine.device.runner import Runner
from jaxinfer.engine.step.packed import PackedMultiStep
from jaxinfer.engine.step.packing import Packer
from jaxinfer.engine.step.plan import StepPlan, StepResult

_NO_ROWS = StepResult(np.zeros((0, 1), np.int32), np.zeros(0, np.int32), np.zeros(0, bool))


class StepFault(Exception):
    """A runner failed to dispatch or to collect a step; `__cause__` says how. Its text names the type of that error."""


class InFlightSteps:
    """Steps in the order of their dispatch. dispatched, collected: how many since the start, discarded ones in both."""

    def __init__(self, runner: Runner):
        self._runner = runner
        self._packer = Packer(runner.shapes)
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
            self._handles.append(self.start(plan))
        except Exception as error:
            raise StepFault(type(error).__name__) from error

    def start(self, plan: StepPlan) -> Any:
        """Packs a plan and hands it to the runner. None for a plan without rows."""
        for packed in self._packer.slots(plan.admissions):
            self._runner.init_slots(packed)
        if not plan.num_rows:
            return None
        step = self._packer.pack(plan)
        if isinstance(step, PackedMultiStep):
            return self._runner.decode_steps(step)
        return self._runner.sample(step, self._runner.forward(step))

    def collect(self) -> tuple[StepPlan, StepResult]:
        """Waits for the oldest step, which stays in flight where it failed. Raises StepFault."""
        try:
            result = self.read(self._handles[0])
        except Exception as error:
            raise StepFault(type(error).__name__) from error
        self._handles.popleft()
        self.collected += 1
        return self._plans.popleft(), result

    def read(self, handle: Any) -> StepResult:
        """Waits for what `start` has started."""
        return _NO_ROWS if handle is None else self._runner.collect(handle)

    def discard(self) -> list[StepPlan]:
        """Discards every step: their results will not be read."""
        plans = list(self._plans)
        self._plans.clear()
        self._handles.clear()
        self.collected = self.dispatched
        return plans
