"""LeadingRunner: the runner of the host that schedules, which has other hosts repeat every call."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxinfer.engine.device import calls
from jaxinfer.engine.device.call_stream import CallWriter
from jaxinfer.engine.device.runner import DeviceMemory, Drafts, ExpertTokens, LatePrograms, Runner
from jaxinfer.engine.step.packed import PackedBurst, PackedForward, PackedHistory, PackedMasks
from jaxinfer.engine.step.plan import StepKind, StepResult
from jaxinfer.engine.step.shapes import EngineShapes


class _Numbered(NamedTuple):
    """A forward pass by its number, and the runner's own handle."""

    number: int
    handle: Any


class LeadingRunner:
    """A Runner that sends each call to followers before `runner` performs it, so that no host waits for this one.

    send(message): takes the bytes of a call, as `Follower.apply` reads them. What it raises is a step fault; the reset
    that follows is sent as well. stream: number and digest of the calls so far. on_collected: is called with the number
    of the call that started a step, once its results are there; on_failed: where it failed, and may raise a better
    reason than the device gives.
    """

    def __init__(
        self,
        runner: Runner,
        send: Callable[[bytes], None],
        on_collected: Callable[[int], None] = lambda number: None,
        on_failed: Callable[[], None] = lambda: None,
    ):
        self.stream = CallWriter()
        self._runner = runner
        self._send_bytes = send
        self._on_collected = on_collected
        self._on_failed = on_failed
        self._in_flight: deque[int] = deque()
        """Steps, by the number of the call that started each."""
        self._num_forwards = 0

    @property
    def shapes(self) -> EngineShapes:
        return self._runner.shapes

    @property
    def compiles_after_ready(self) -> int:
        return self._runner.compiles_after_ready

    @property
    def late_programs(self) -> LatePrograms:
        return self._runner.late_programs

    @property
    def compiling(self) -> bool:
        return self._runner.compiling

    @property
    def step_seconds(self) -> Mapping[tuple[StepKind, int], float]:
        return self._runner.step_seconds

    def init_slots(self, packed: np.ndarray) -> None:
        self._send(calls.InitSlots(packed))
        self._runner.init_slots(packed)

    def set_history(self, packed: PackedHistory) -> None:
        self._send(calls.SetHistory(packed))
        self._runner.set_history(packed)

    def copy_blocks(self, packed: np.ndarray) -> None:
        self._send(calls.CopyBlocks(packed))
        self._runner.copy_blocks(packed)

    def forward(self, step: PackedForward) -> _Numbered:
        number = self._next_forward()
        self._send(calls.Forward(number, step))
        return _Numbered(number, self._runner.forward(step))

    def sample(self, step: PackedForward, forwarded: _Numbered) -> Any:
        self._send(calls.Sample(forwarded.number))
        return self._dispatched(self._runner.sample(step, forwarded.handle))

    def set_masks(self, packed: PackedMasks) -> None:
        self._send(calls.SetMasks(packed))
        self._runner.set_masks(packed)

    def burst(self, step: PackedBurst) -> Any:
        self._send(calls.Burst(step))
        return self._dispatched(self._runner.burst(step))

    def draft(self, step: PackedBurst) -> _Numbered:
        number = self._next_forward()
        self._send(calls.Draft(number, step))
        return _Numbered(number, self._runner.draft(step))

    def read_drafts(self, step: PackedBurst, drafted: _Numbered) -> Drafts:
        return self._runner.read_drafts(step, drafted.handle)

    def verify(self, step: PackedBurst, drafted: _Numbered, counts: np.ndarray) -> Any:
        self._send(calls.Verify(drafted.number, counts))
        return self._dispatched(self._runner.verify(step, drafted.handle, counts))

    def collect(self, handle: Any) -> StepResult:
        try:
            result = self._runner.collect(handle)
        except Exception:
            self._on_failed()
            raise
        self._on_collected(self._in_flight.popleft())
        return result

    def reset(self) -> None:
        self._in_flight.clear()
        self._send(calls.Reset())
        self._runner.reset()

    def memory(self) -> tuple[DeviceMemory, ...]:
        return self._runner.memory()

    def expert_load(self) -> ExpertTokens | None:
        return self._runner.expert_load()

    def close(self) -> None:
        self._runner.close()

    def _send(self, call: calls.Call) -> None:
        self._send_bytes(self.stream.write(call))

    def _dispatched(self, handle: Any) -> Any:
        self._in_flight.append(self.stream.number - 1)
        return handle

    def _next_forward(self) -> int:
        self._num_forwards += 1
        return self._num_forwards - 1
