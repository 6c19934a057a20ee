"""A leading runner and a follower in one process, each over a device of its own, and what both have done."""

from typing import Any

import msgspec
import numpy as np

from jaxinfer.engine.device.calls import Call, Reset
from jaxinfer.engine.device.follower import Follower
from jaxinfer.engine.device.leader import LeadingRunner
from jaxinfer.engine.device.runner import Runner
from jaxinfer.engine.step.plan import StepResult
from tests.engine.faulty import FaultAt, StepBroke


class Recorded:
    """A runner, and what was asked of it since it was made. results: those collected, a list from reset to reset."""

    def __init__(self, runner: Runner):
        self._runner = runner
        self.calls: list[Call] = []
        self.results: list[list[StepResult]] = [[]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def submit(self, call: Call) -> None:
        self.calls.append(call)
        if isinstance(call, Reset):
            self.results.append([])
        self._runner.submit(call)

    def collect(self, index: int) -> StepResult:
        self.results[-1].append(self._runner.collect(index))
        return self.results[-1][-1]


class FailingCalls:
    """A runner of which a call fails where a test says so: "dispatch" before the device has it, "dispatched" after."""

    def __init__(self, runner: Any):
        self._runner = runner
        self._at: FaultAt | None = None
        self._passing = 0

    def fail_once(self, at: FaultAt, *, after: int = 0) -> None:
        """The next call fails that comes to `at`, or one `after` so many."""
        self._at, self._passing = at, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def submit(self, call: Call) -> None:
        if isinstance(call, Reset):
            self._runner.submit(call)
            return
        self._maybe("dispatch")
        self._runner.submit(call)
        self._maybe("dispatched")

    def collect(self, index: int) -> StepResult:
        self._maybe("collect")
        result = self._runner.collect(index)
        self._maybe("collected")
        return result

    def _maybe(self, at: FaultAt) -> None:
        if self._at == at:
            self._passing -= 1
            if self._passing < 0:
                self._at = None
                raise StepBroke(at)


class Followed:
    """leader: the runner for an engine, over `device`. Each of its messages is applied at once over `other`.

    most_kept: steps that the follower kept, at most. compared: how many results `check` has compared.
    """

    def __init__(self, device: Any, other: Any, *, steps_ahead: int | None = None):
        self._devices = device, other
        self.led: Any = Recorded(device)
        self.repeated: Any = Recorded(other)
        self.leader = LeadingRunner(self.led, self._send)
        self.follower = Follower(self.repeated, steps_ahead=steps_ahead)
        self.messages: list[bytes] = []
        self.errors: list[Exception] = []
        self.compared = self.most_kept = 0

    def _send(self, message: bytes) -> None:
        self.messages.append(message)
        try:
            self.follower.apply(message)
        except Exception as error:  # the engine would take it for a step fault, and go on
            self.errors.append(error)
            raise
        self.most_kept = max(self.most_kept, len(self.follower))

    def check(self) -> None:
        """The follower was asked the same as the leader's runner, and gave the same. Nothing is in flight."""
        assert not self.errors
        self.follower.drain()
        assert len(self.follower) == 0
        assert_same(vars(self.follower.stream), vars(self.leader.stream))
        assert_same(self.led.calls, self.repeated.calls)
        for own, others in zip(self.led.results, self.repeated.results, strict=True):
            common = min(len(own), len(others))
            assert_same(own[:common], others[:common])
            self.compared += common
        assert len(self.led.results[-1]) == len(self.repeated.results[-1])
        for own, other in zip(*map(_blocks, self._devices), strict=True):
            np.testing.assert_array_equal(own, other)


def assert_same(one: Any, other: Any) -> None:
    """Of the same types and values, arrays too."""
    assert type(one) is type(other)
    if isinstance(one, msgspec.Struct):
        assert_same(msgspec.structs.astuple(one), msgspec.structs.astuple(other))
    elif isinstance(one, tuple | list):
        assert len(one) == len(other)
        for each in zip(one, other, strict=True):
            assert_same(*each)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other


def _blocks(device: Any) -> list[Any]:
    """KV blocks of every group, of a device with stages and of a simulated one."""
    return [kv for stage in device.stages for kv in stage.kv] if hasattr(device, "stages") else device.kv
