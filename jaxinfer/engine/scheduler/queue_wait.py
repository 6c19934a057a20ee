"""QueueWait and Deadlines: for how long requests wait for their first slot, and for how long they may."""

import heapq
from collections import deque
from collections.abc import Callable, Iterator

from jaxinfer.engine.scheduler.queue_limit import TenantCounts
from jaxinfer.engine.sequence import Sequence, Status

_LEAST_WINDOW = 64
"""Admissions whose mean interval the estimate is made of; with many slots twice as many as there are slots."""
_SECOND = 1e9
_MOST_GAP = 5 * _SECOND
"""Nanoseconds that count at most between two plans."""


class StepClock:
    """The time in which steps are planned, in nanoseconds: it stands still while a program is compiled or a step
    stalls, which is nobody's wait. One thread calls `advance`; `read` is safe in any thread."""

    def __init__(self, clock: Callable[[], int]):
        self._clock = clock
        self._last = clock(), 0.0  # the clock's time and this one's

    def read(self) -> float:
        """Return the time."""
        seen, time = self._last
        return time + min(self._clock() - seen, _MOST_GAP)

    def advance(self) -> None:
        """Note that a step is planned now."""
        time = self.read()
        self._last = self._clock(), time


class QueueWait:
    """Estimates the wait of a request from how often requests are admitted while others wait.

    A queue is saturated from the first plan that admits nobody though somebody waits until nobody waits any more. Only
    admissions in that time count: before it free slots are filled at once, and tell nothing of when the next is free.
    Requests that run side by side may also end side by side, so before as many were admitted as there are slots the
    estimate is low rather than high. One thread calls `planned`; `estimate` is safe in any thread.
    """

    def __init__(self, clock: StepClock, slots: int):
        self._clock = clock
        self._slots = slots
        self._times: deque[float] = deque(maxlen=max(_LEAST_WINDOW, 2 * slots) + 1)
        self._saturated: tuple[float, int] | None = None  # when the window begins, and the admissions in it

    def planned(self, *, waiting: int, admitted: int) -> None:
        """Note a plan: how many requests it admits, and how many it leaves waiting."""
        if not waiting:
            self._saturated = None
        elif self._saturated is not None:
            self._times.extend([self._clock.read()] * admitted)
            self._saturated = self._times[0], len(self._times) - 1
        elif not admitted:
            self._times.clear()
            self._times.append(self._clock.read())
            self._saturated = self._times[0], 0

    def estimate(self, ahead: int) -> float:
        """Return the seconds until a request gets a slot that waits behind `ahead` others."""
        window = self._saturated
        if window is None or not ahead:
            return 0.0
        begun, count = window
        return (ahead + 1) * (self._clock.read() - begun) / max(count, self._slots) / _SECOND


def place_of(tenant: tuple[str, ...], *waiting: TenantCounts) -> int:
    """Return how many waiting requests come before a new one of a tenant: all, or with fair sharing those of its share
    and as many of each other tenant."""
    total = sum(counts.total for counts in waiting)
    if not tenant:
        return total
    own = sum(counts.of(tenant) for counts in waiting)
    tenants = max(counts.num_tenants for counts in waiting) + (not own)
    return min(total, (own + 1) * tenants - 1)


class Deadlines:
    """Sequences that end if they have no slot by a time of their own.

    At most twice as many are kept as wait, and a few: those that have a slot or have ended are dropped now and then.
    """

    def __init__(self, clock: StepClock):
        self._clock = clock
        self._due: list[tuple[float, int, Sequence]] = []
        self._most = _LEAST_WINDOW

    def add(self, sequence: Sequence, seconds: float) -> None:
        """Let a sequence that is queued now wait at most so long."""
        heapq.heappush(self._due, (self._clock.read() + seconds * _SECOND, sequence.arrival, sequence))
        if len(self._due) > self._most:
            self._due = [entry for entry in self._due if _waits_for_its_first_slot(entry[-1])]
            heapq.heapify(self._due)
            self._most = 2 * len(self._due) + _LEAST_WINDOW

    def expired(self) -> Iterator[Sequence]:
        """Take out the sequences whose time has come, and yield those that never had a slot."""
        now = self._clock.read()
        while self._due and self._due[0][0] <= now:
            sequence = heapq.heappop(self._due)[-1]
            if _waits_for_its_first_slot(sequence):
                yield sequence


def _waits_for_its_first_slot(sequence: Sequence) -> bool:
    return sequence.status is Status.WAITING and sequence.scheduled_at is None
