"""DeviceRunner: a Runner with a device of its own."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from jaxinfer.engine.device.calls import Call, Reset, Sample, Start, Write
from jaxinfer.engine.device.runner import Drafts
from jaxinfer.engine.step.packed import PackedStep
from jaxinfer.engine.step.plan import StepResult


class DeviceRunner(ABC):
    """Performs calls by methods that a subclass has, and keeps by index what each step needs until it is collected."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[PackedStep, Any]] = {}
        """Steps that wait for `Sample`, and what `begin` returned for each."""
        self._in_flight: dict[int, Any] = {}

    def submit(self, call: Call) -> None:
        """Starts what a call asks for, as `Runner.submit`."""
        match call:
            case Start(step, samples=True):
                self._in_flight[step.index] = self.run(step)
            case Start(step):
                self._begun[step.index] = step, self.begin(step)
            case Sample(index, counts):
                self._in_flight[index] = self.finish(*self._begun.pop(index), counts)
            case Reset():
                self._begun.clear()
                self._in_flight.clear()
                self.reset()
            case _:
                self.write(call)

    def read_drafts(self, index: int) -> Drafts:
        """Waits for the drafts of a step, as `Runner.read_drafts`."""
        return self.drafts(*self._begun[index])

    def collect(self, index: int) -> StepResult:
        """Waits for a step, as `Runner.collect`."""
        return self.result(self._in_flight.pop(index))

    def run(self, step: PackedStep) -> Any:
        """Starts a step as a whole. Returns what `result` needs."""
        return self.finish(step, self.begin(step), None)

    @abstractmethod
    def write(self, call: Write) -> None:
        """Starts to change what the device remembers."""

    @abstractmethod
    def begin(self, step: PackedStep) -> Any:
        """Starts a forward pass, over drafts if the step drafts. Returns what `drafts` and `finish` need of it."""

    @abstractmethod
    def drafts(self, step: PackedStep, begun: Any) -> Drafts:
        """Waits for the drafts, not for the forward pass."""

    @abstractmethod
    def finish(self, step: PackedStep, begun: Any, counts: np.ndarray | None) -> Any:
        """Starts to sample after a forward pass. Returns what `result` needs. counts: as in `Sample`; None: all drafts
        may be kept."""

    @abstractmethod
    def result(self, started: Any) -> StepResult:
        """Waits for a step."""

    @abstractmethod
    def reset(self) -> None:
        """Makes blocks and slot state anew. Raises what is wrong where the device is gone."""
