"""Follower: a host without a scheduler, whose runner repeats the calls of a LeadingRunner."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jaxinfer.engine.device import calls
from jaxinfer.engine.device.call_stream import CallReader
from jaxinfer.engine.device.runner import Runner
from jaxinfer.engine.step.packed import PackedStep


class FollowerError(Exception):
    """A call failed, or a step; `__cause__` says how."""


class Follower:
    """Performs calls in the order of their messages.

    It collects each step, though nobody reads the results: until then handles hold memory, the load of experts is not
    counted, and a failed step goes unnoticed. It does so in the order of dispatch, as soon as more than `steps_ahead`
    steps are in flight: by default one a stage, as an engine has. So it waits only for steps that the leader waits for.

    stream: number and digest of the calls so far. collected: the call of the last step that was collected, by number.
    """

    def __init__(self, runner: Runner, *, steps_ahead: int | None = None):
        self.stream = CallReader()
        self.collected: int | None = None
        self._runner = runner
        self._steps_ahead = runner.shapes.stages if steps_ahead is None else steps_ahead
        self._unsampled: dict[int, tuple[Any, Any]] = {}
        """Forward passes that wait for `Sample` or `Verify`, by number: the step, and the runner's handle."""
        self._in_flight: deque[tuple[int, Any]] = deque()
        """Steps: the number of the last call of each, and the runner's handle."""
        self._failed = False

    def __len__(self) -> int:
        """Handles that it keeps."""
        return len(self._unsampled) + len(self._in_flight)

    @property
    def compiling(self) -> bool:
        """True while the runner compiles. Safe in any thread."""
        return self._runner.compiling

    @property
    def num_in_flight(self) -> int:
        """Steps that are not collected yet."""
        return len(self._in_flight)

    def apply(self, message: bytes) -> None:
        """Performs a call. Raises CallStreamError where it is not the next one, and FollowerError where it fails: calls
        after that are passed over until a reset comes, as a Runner wants it after a step fault."""
        call = self.stream.read(message)
        if self._failed and not isinstance(call, calls.Reset):
            return
        with self._failure(f"call {self.stream.number - 1}, {type(call).__name__},"):
            self._perform(call)
        self._collect(self._steps_ahead)

    def drain(self) -> None:
        """Collects every step in flight. Raises FollowerError."""
        self._collect(keep=0)

    def _perform(self, call: calls.Call) -> None:
        match call:
            case calls.InitSlots(packed):
                self._runner.init_slots(packed)
            case calls.SetHistory(packed):
                self._runner.set_history(packed)
            case calls.CopyBlocks(packed):
                self._runner.copy_blocks(packed)
            case calls.SetMasks(packed):
                self._runner.set_masks(packed)
            case calls.Forward(number, step):
                self._start(number, step, self._runner.forward)
            case calls.Draft(number, step):
                self._start(number, step, self._runner.draft)
            case calls.Sample(number):
                self._dispatched(self._runner.sample(*self._take(number)))
            case calls.Verify(number, counts):
                self._dispatched(self._runner.verify(*self._take(number), counts))
            case calls.Burst(step):
                self._dispatched(self._runner.burst(step))
            case calls.Reset():
                self._reset()

    def _start(self, number: int, step: PackedStep, start: Callable[[Any], Any]) -> None:
        if len(self._unsampled) > self._steps_ahead:
            raise ValueError(f"number: forward pass {number} comes, and {list(self._unsampled)} are not sampled yet")
        self._unsampled[number] = step, start(step)

    def _take(self, number: int) -> tuple[Any, Any]:
        if number not in self._unsampled:
            raise ValueError(f"number: forward pass {number} is named; to be sampled are {list(self._unsampled)}")
        return self._unsampled.pop(number)

    def _dispatched(self, handle: Any) -> None:
        self._in_flight.append((self.stream.number - 1, handle))

    def _collect(self, keep: int) -> None:
        while len(self._in_flight) > keep:
            number, handle = self._in_flight.popleft()
            with self._failure(f"the step of call {number}"):
                self._runner.collect(handle)
            self.collected = number

    @contextmanager
    def _failure(self, what: str) -> Iterator[None]:
        """Turn what the runner raises into a FollowerError."""
        try:
            yield
        except Exception as error:
            self._failed = True
            raise FollowerError(f"{what} failed with {type(error).__name__}: {error}") from error

    def _reset(self) -> None:
        self._unsampled.clear()
        self._in_flight.clear()
        self._runner.reset()
        self._failed = False
