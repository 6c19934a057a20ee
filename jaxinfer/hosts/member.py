"""Member: a follower as host 0 knows it."""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from jaxinfer.engine.watchdog import Watchdog
from jaxinfer.hosts.messages import Down, Progress, Ready
from jaxinfer.hosts.timing import HostTiming


class HostState(NamedTuple):
    """State of a follower for metrics. peer: its address. calls_behind: calls that it has not performed yet. step_skew:
    seconds from host 0's collection of a step to the news that this host has collected the same one, of the last step
    that both have collected; None before. heartbeat_age: seconds since it was heard."""

    host_id: int
    peer: str
    calls_behind: int
    step_skew: float | None
    heartbeat_age: float


class Member:
    """A follower as its leader sees it: calls sent and progress reported. It is guarded by its leader's condition.

    progress: as it was reported last. sent: calls that were sent to it. outbox: messages that go before further calls.
    gone: its stream has ended.
    """

    def __init__(self, host_id: int, peer: str, timing: HostTiming):
        self.host_id = host_id
        self.peer = peer
        self.progress = Progress(0, 0, None, False, False)
        self.sent = 0
        self.outbox: deque[Down] = deque()
        self.ready: dict[str, Ready] = {}
        self.gone = False
        self.skew: float | None = None
        self._timing = timing
        self._heard_at = self._collected_at = time.monotonic()
        self._silence = Watchdog(timing.silence_at(serving=False))
        self._step: Watchdog | None = None

    def start_serving(self) -> None:
        """From now on silence is short, and calls are watched."""
        self._silence = Watchdog(self._timing.silence_at(serving=True))
        self._step = Watchdog(self._timing.step_or_ever)

    def hear(self) -> None:
        """It has sent something."""
        self._heard_at = time.monotonic()
        self._silence.feed()

    def report(self, progress: Progress, own_collected: Callable[[int], float | None]) -> None:
        """Takes its report. own_collected: when host 0 has collected the step of a call."""
        advanced = (progress.applied, progress.collected) != (self.progress.applied, self.progress.collected)
        if progress.collected is not None and progress.collected != self.progress.collected:
            self._collected_at = self._heard_at
            own = own_collected(progress.collected)
            self.skew = self.skew if own is None else self._heard_at - own
        self.progress = progress
        if advanced and self._step is not None:
            self._step.feed()

    def note_collected(self, number: int, now: float) -> None:
        """Host 0 has collected a step, perhaps after this host."""
        if number == self.progress.collected:
            self.skew = self._collected_at - now

    def complaint(self, num_calls: int) -> str | None:
        """Why it is lost, or None. num_calls: of host 0 so far."""
        if self._silence.expired():
            return f"host {self.host_id} was silent for {self._silence.seconds:g} s"
        if self._step is None:
            return None
        waits_for_it = self.progress.busy or self.progress.applied < num_calls
        if self.progress.compiling or not waits_for_it:
            self._step.feed()
        elif self._step.expired():
            behind = f"{self.progress.applied} of {num_calls} calls"
            return f"host {self.host_id} has made no progress for {self._step.seconds:g} s; it has performed {behind}"
        return None

    def state(self, num_calls: int) -> HostState:
        """A reading of now."""
        age = time.monotonic() - self._heard_at
        return HostState(self.host_id, self.peer, num_calls - self.progress.applied, self.skew, age)
