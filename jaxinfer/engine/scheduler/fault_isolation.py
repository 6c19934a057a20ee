"""FaultIsolation: after step faults, which request makes steps fail; only that one ends."""

from collections.abc import Iterable, Sequence

from jaxinfer.engine.scheduler.state import SchedulerState
from jaxinfer.engine.sequence import Request
from jaxinfer.engine.step.plan import StepPlan

_MAX_FAILED_ALONE = 8
"""Requests that fail alone one after another until the fault is the device's and not theirs."""
_FAR = 16
"""Positions after which a request may be isolated again."""


class FaultIsolation:
    """A fault tells of a step, not of a request. Once a request of a failed step has one retry left, all requests of
    that step are computed alone: one after another, before all others, each until it is past the position of the fault.

    Isolation runs in rounds. After a round in which nobody failed, its requests are not isolated again until they have
    come far: they fail together, and end together. So do all where one after another fails alone.
    current: the request that is computed alone.
    """

    def __init__(self, state: SchedulerState, max_retries: int):
        self._state = state
        self._max_retries = max_retries
        self._round = 0
        self._fruitful = 0
        self._failed: set[str] = set()
        self._goal = 0
        self.current: Request | None = None

    @property
    def active(self) -> bool:
        """True while a request is computed alone, or waits for it."""
        return self.current is not None or self._state.queue.has_isolated

    def may_admit(self) -> bool:
        """Whether the next of the queue may have a slot; an isolated one needs them all, and no step in flight."""
        if self.current is not None:
            return False
        return not self._state.queue.has_isolated or not (self._state.table.num_taken or self._state.in_flight)

    def note_admission(self, request: Request) -> None:
        """Must be called when a request gets a slot."""
        if request.isolated:
            self.current = request
            self._goal = 1 + max(request.num_known, request.most_computed)

    def release_passed(self) -> None:
        """Ends the isolation of a request that is past the fault; if others wait for theirs, it is queued again."""
        request, state = self.current, self._state
        if request is None:
            return
        if request.slot >= 0:
            if request.num_known < self._goal:
                return
            if state.queue.has_isolated and state.in_flight:
                state.must_drain = True
                return
        self.current, request.isolated, request.failures = None, False, 0
        self._failed.clear()
        if request.slot >= 0 and state.queue.has_isolated:
            state.requeue(request)

    def retry(self, discarded: Sequence[StepPlan]) -> list[Request]:
        """Queues every request that holds anything again; returns those that were in failed steps too often.

        discarded: the plans whose results will not be read. Any request in them may be the cause, so each has failed
        once more. Failures are counted anew once a request is further than at any failure before: faults an hour apart
        end nobody, and a request that fails at one position again and again ends, since positions are bounded.
        """
        table = self._state.table
        # A slot that changed hands since was admitted by a later plan, which is discarded too.
        slots = {slot for plan in discarded for slot in plan.slots.tolist()}
        slots |= {init.slot for plan in discarded for init in plan.admissions}
        involved = [request for slot in sorted(slots) if (request := table.requests[slot]) is not None]
        for request in involved:
            request.count_failure(int(table.collected[request.slot]), int(table.computed[request.slot]))
        self._isolate(involved)
        self._state.requeue_all()
        return [request for request in involved if request.failures > self._max_retries]

    def _isolate(self, involved: Iterable[Request]) -> None:
        """Decides which requests of failed steps are computed alone; they are not in the queue again yet."""
        isolated, self.current = self.current, None
        if isolated is not None and isolated.failures > self._max_retries:
            self._fruitful = self._round
            self._failed.add(isolated.request_id)
        left = [request for request in involved if request.failures <= self._max_retries]
        due = [request for request in left if request.failures == self._max_retries]
        if isolated is None and any(self._may_be_isolated(request) for request in due):
            self._round += 1
            self._failed.clear()
            for request in left:
                request.isolated, request.isolation_round, request.isolated_at = (
                    True,
                    self._round,
                    request.most_collected,
                )
        if len(self._failed) >= _MAX_FAILED_ALONE:
            self._state.queue.end_isolation()

    def _may_be_isolated(self, request: Request) -> bool:
        return request.isolation_round <= self._fruitful or request.most_collected >= request.isolated_at + _FAR
