"""Follower: a host without a scheduler, whose runner repeats the calls of a LeadingRunner."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from jaxinfer.engine.device.call_stream import CallReader
from jaxinfer.engine.device.calls import Call, Reset, Sample, Start, sampled_by
from jaxinfer.engine.device.runner import Runner


class FollowerError(Exception):
    """A call failed, or a step; `__cause__` says how."""


class Follower:
    """Performs calls in the order of their messages.

    It collects each step, though nobody reads the results: until then steps hold memory, the load of experts is not
    counted, and a failed step goes unnoticed. It does so in the order of dispatch, as soon as more than `steps_ahead`
    steps are in flight: by default one a stage, as an engine has. So it waits only for steps that the leader waits for.

    stream: number and digest of the calls so far. collected: the call of the last step that was collected, by number.
    """

    def __init__(self, runner: Runner, *, steps_ahead: int | None = None):
        self.stream = CallReader()
        self.collected: int | None = None
        self._runner = runner
        self._steps_ahead = runner.shapes.stages if steps_ahead is None else steps_ahead
        self._unsampled: set[int] = set()
        """Steps that wait for `Sample`, by index."""
        self._in_flight: deque[tuple[int, int]] = deque()
        """Steps: the number of the last call of each, and its index."""
        self._failed = False

    def __len__(self) -> int:
        """Steps that its runner keeps."""
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
        if self._failed and not isinstance(call, Reset):
            return
        with self._failure(f"call {self.stream.number - 1}, {type(call).__name__},"):
            self._perform(call)
        self._collect(self._steps_ahead)

    def drain(self) -> None:
        """Collects every step in flight. Raises FollowerError."""
        self._collect(keep=0)

    def _perform(self, call: Call) -> None:
        match call:
            case Start(step, samples=False):
                if len(self._unsampled) > self._steps_ahead:
                    unsampled = sorted(self._unsampled)
                    raise ValueError(f"index: step {step.index} comes, and {unsampled} are not sampled yet")
                self._unsampled.add(step.index)
            case Sample(index):
                if index not in self._unsampled:
                    raise ValueError(f"index: step {index} is named; to be sampled are {sorted(self._unsampled)}")
                self._unsampled.remove(index)
            case Reset():
                self._unsampled.clear()
                self._in_flight.clear()
        self._runner.submit(call)
        self._failed = False
        if (index := sampled_by(call)) is not None:
            self._in_flight.append((self.stream.number - 1, index))

    def _collect(self, keep: int) -> None:
        while len(self._in_flight) > keep:
            number, index = self._in_flight.popleft()
            with self._failure(f"the step of call {number}"):
                self._runner.collect(index)
            self.collected = number

    @contextmanager
    def _failure(self, what: str) -> Iterator[None]:
        """Turn what the runner raises into a FollowerError."""
        try:
            yield
        except Exception as error:
            self._failed = True
            raise FollowerError(f"{what} failed with {type(error).__name__}: {error}") from error
