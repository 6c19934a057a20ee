"""DeviceRunner: a Runner with a device of its own."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from jaxinfer.engine.device.calls import Burst, Call, Forward, Reset, Sample, Write
from jaxinfer.engine.device.runner import Drafts
from jaxinfer.engine.step.packed import PackedBurst, PackedForward, PackedStep
from jaxinfer.engine.step.plan import StepResult


class DeviceRunner(ABC):
    """Performs calls by methods that a subclass has, and keeps by index what each step needs until it is collected."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[PackedStep, Any]] = {}
        """Steps that wait for `Sample`, and what `forward` or `draft` returned for each."""
        self._in_flight: dict[int, Any] = {}

    def submit(self, call: Call) -> None:
        """Starts what a call asks for, as `Runner.submit`."""
        match call:
            case Forward(step, samples):
                begun = self.forward(step)
                if samples:
                    self._in_flight[step.index] = self.sample(step, begun)
                else:
                    self._begun[step.index] = step, begun
            case Burst(step, samples=True):
                self._in_flight[step.index] = self.burst(step)
            case Burst(step):
                self._begun[step.index] = step, self.draft(step)
            case Sample(index, counts):
                self._in_flight[index] = self._sampled(*self._begun.pop(index), counts)
            case Reset():
                self._begun.clear()
                self._in_flight.clear()
                self.reset()
            case _:
                self.write(call)

    def read_drafts(self, index: int) -> Drafts:
        """Waits for the drafts of a step, as `Runner.read_drafts`."""
        step, begun = self._begun[index]
        assert isinstance(step, PackedBurst)
        return self.drafts(step, begun)

    def collect(self, index: int) -> StepResult:
        """Waits for a step, as `Runner.collect`."""
        return self.result(self._in_flight.pop(index))

    def _sampled(self, step: PackedStep, begun: Any, counts: np.ndarray | None) -> Any:
        if isinstance(step, PackedForward):
            return self.sample(step, begun)
        assert counts is not None
        return self.verify(step, begun, counts)

    @abstractmethod
    def write(self, call: Write) -> None:
        """Starts to change what the device remembers."""

    @abstractmethod
    def forward(self, step: PackedForward) -> Any:
        """Starts a forward pass. Returns what `sample` needs of it."""

    @abstractmethod
    def sample(self, step: PackedForward, begun: Any) -> Any:
        """Starts to sample after a forward pass. Returns what `result` needs."""

    @abstractmethod
    def burst(self, step: PackedBurst) -> Any:
        """Starts a step by which rows may get several tokens. Returns what `result` needs."""

    @abstractmethod
    def draft(self, step: PackedBurst) -> Any:
        """Starts to draft, and a forward pass over the drafts. Returns what `drafts` and `verify` need of both."""

    @abstractmethod
    def drafts(self, step: PackedBurst, begun: Any) -> Drafts:
        """Waits for the drafts, not for the forward pass."""

    @abstractmethod
    def verify(self, step: PackedBurst, begun: Any, counts: np.ndarray) -> Any:
        """Starts to sample after a forward pass over drafts, of which each row may keep `counts`. Returns what `result`
        needs."""

    @abstractmethod
    def result(self, started: Any) -> StepResult:
        """Waits for a step."""

    @abstractmethod
    def reset(self) -> None:
        """Makes blocks and slot state anew. Raises what is wrong where the device is gone."""
