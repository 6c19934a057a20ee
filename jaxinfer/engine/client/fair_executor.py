"""FairExecutor: threads for jobs that may take seconds, shared by tenants."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from jaxinfer.errors import QueueFullError

Tenant = tuple[str, ...]
_WEIGHT = 0.5
"""Weight of a job's time in the mean of its tenant."""


class _Job(NamedTuple):
    """Work that waits. late: told instead, where it has waited too long."""

    run: Callable[[], None]
    late: Callable[[QueueFullError], object]
    submitted: float


class _Share:
    """A tenant that has jobs. taken: seconds that it has taken, or what those had that it came to. mean: seconds of its
    jobs."""

    def __init__(self, taken: float):
        self.waiting: deque[_Job] = deque()
        self.running = 0
        self.taken, self.mean = taken, 0.0


class FairExecutor:
    """Runs jobs in threads. The tenant that has taken least time goes first, and none has all threads: who comes next
    waits for no job of another. Jobs of nobody (no tenants, or requests without a key) may have all threads.

    most_seconds: that a job may wait. One that would wait longer, by what its tenant's jobs take, is refused; one that
    has is told so. clock: seconds.
    """

    def __init__(self, threads: int, most_seconds: float, name: str, clock: Callable[[], float] = time.monotonic):
        self._threads, self._most_seconds, self._clock = threads, most_seconds, clock
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._shares: dict[Tenant, _Share] = {}
        self._level = 0.0

    def submit(self, tenant: Tenant, run: Callable[[], None], late: Callable[[QueueFullError], object]) -> None:
        """Queue a job. Neither function may raise. Raises QueueFullError, and RuntimeError after `shutdown`."""
        with self._lock:
            share = self._shares.get(tenant) or _Share(self._level)
            expected = share.mean * (len(share.waiting) + share.running)
            if expected > self._most_seconds:
                raise QueueFullError(len(share.waiting), math.ceil(expected - self._most_seconds))
            self._pool.submit(self._run_next)
            self._shares[tenant] = share
            share.waiting.append(_Job(run, late, self._clock()))

    def shutdown(self) -> None:
        """Take no more jobs, and forget those that wait."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run_next(self) -> None:
        with self._lock:
            overdue = self._overdue()
            tenant, job = self._next()
        for each, waiting in overdue:
            each.late(QueueFullError(waiting, math.ceil(self._most_seconds)))
        if job is None:
            return
        begun = self._clock()
        try:
            job.run()
        finally:
            self._end(tenant, self._clock() - begun)

    def _overdue(self) -> list[tuple[_Job, int]]:
        """Jobs that have waited too long, each with how many waited with it; they wait no more."""
        found, latest = [], self._clock() - self._most_seconds
        for share in self._shares.values():
            waiting = len(share.waiting)
            while share.waiting and share.waiting[0].submitted < latest:
                found.append((share.waiting.popleft(), waiting))
        return found

    def _next(self) -> tuple[Tenant, _Job | None]:
        """The next job, which counts as running, and whose it is; None where no tenant may have another thread."""
        may = [tenant for tenant, share in self._shares.items() if share.waiting and share.running < self._most(tenant)]
        if not may:
            return (), None
        tenant = min(may, key=lambda each: self._shares[each].taken)
        share = self._shares[tenant]
        share.running += 1
        self._level = max(self._level, share.taken)
        return tenant, share.waiting.popleft()

    def _most(self, tenant: Tenant) -> int:
        return max(self._threads - 1, 1) if any(tenant) else self._threads

    def _end(self, tenant: Tenant, seconds: float) -> None:
        with self._lock:
            share = self._shares[tenant]
            share.running -= 1
            share.taken += seconds
            share.mean += (_WEIGHT if share.mean else 1.0) * (seconds - share.mean)
            for each in [name for name, own in self._shares.items() if not own.waiting and not own.running]:
                del self._shares[each]
            if not any(own.waiting for own in self._shares.values()):
                return
        try:
            self._pool.submit(self._run_next)
        except RuntimeError:  # closed a moment ago
            return
