"""QueueWait and Deadlines: for how long requests wait for their first slot, and for how long they may."""

import heapq
from collections import deque
from collections.abc import Callable, Iterator

from jaxinfer.engine.scheduler.queue_limit import TenantCounts
from jaxinfer.engine.sequence import Sequence, Status

_WINDOW = 64
"""Admissions whose mean interval the estimate is made of."""
_SECOND = 1e9


class QueueWait:
    """Estimates the wait of a request from how often requests are admitted while others wait.

    A queue is saturated from the first plan that admits nobody though somebody waits until nobody waits any more. Only
    admissions in that time count: before it free slots are filled at once, and tell nothing of when the next is free.
    clock: nanoseconds. One thread calls `planned`; `estimate` is safe in any thread.
    """

    def __init__(self, clock: Callable[[], int]):
        self._clock = clock
        self._times: deque[int] = deque(maxlen=_WINDOW + 1)
        self._saturated: tuple[int, int] | None = None  # when the window begins, and the admissions in it
        self._last = 0.0

    def planned(self, *, waiting: int, admitted: int) -> None:
        """Note a plan: how many requests it admits, and how many it leaves waiting."""
        if self._saturated is not None:
            self._times.extend([self._clock()] * admitted)
            self._saturated = self._times[0], len(self._times) - 1
            self._last = self._interval()
            if not waiting:
                self._saturated = None
        elif waiting and not admitted:
            self._times.clear()
            self._times.append(self._clock())
            self._saturated = self._times[0], 0

    def estimate(self, ahead: int) -> float:
        """Return the seconds until a request gets a slot that waits behind `ahead` others."""
        return (ahead + 1) * self._interval() / _SECOND if ahead else 0.0

    def _interval(self) -> float:
        """Return the nanoseconds between two admissions, that since the last one included."""
        window = self._saturated
        if window is None:
            return self._last
        begun, count = window
        return (self._clock() - begun) / count if count else max(self._last, self._clock() - begun)


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
    """Sequences that end if they have no slot by a time of their own."""

    def __init__(self, clock: Callable[[], int]):
        self._clock = clock
        self._due: list[tuple[int, int, Sequence]] = []

    def add(self, sequence: Sequence, seconds: float) -> None:
        """Let a sequence that is queued now wait at most so long."""
        heapq.heappush(self._due, (self._clock() + int(seconds * _SECOND), sequence.arrival, sequence))

    def expired(self) -> Iterator[Sequence]:
        """Take out the sequences whose time has come, and yield those that never had a slot."""
        while self._due and self._due[0][0] <= self._clock():
            sequence = heapq.heappop(self._due)[-1]
            if sequence.status is Status.WAITING and sequence.scheduled_at is None:
                yield sequence
