"""Trials: before anybody's last try each of a failed step is computed alone, so that none takes others along."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jaxinfer.engine.request import Request

if TYPE_CHECKING:
    from jaxinfer.engine.scheduler import Scheduler

_MOST_IN_ROW = 8
"""Requests that fail alone one after another until the device is held to be what fails, and not they."""
_FAR = 16
"""Positions after which the trials of long ago say nothing of a request any more."""


class Trials:
    """A fault tells of a step, not of a request. Once one of a failed step's requests has one try left, all of them are
    computed alone, one after another and before all others, each until it has come further than where the step failed.

    Trials come in rounds. One that finds nobody grants those that were in it no other until they have come far: they
    fail together, and end together. So do all where one after another fails alone. current: the request on trial.
    """

    def __init__(self, scheduler: "Scheduler", max_retries: int):
        self._scheduler = scheduler
        self._max_retries = max_retries
        self._round = 0
        self._fruitful = 0
        self._failed: set[str] = set()
        self._goal = 0
        self.current: Request | None = None

    @property
    def pending(self) -> bool:
        """True while somebody is on trial, or waits for it."""
        return self.current is not None or self._scheduler.waiting.has_alone

    def may_enter(self) -> bool:
        """Whether the next of the queue may have a slot: one on trial wants them all free, and no step in flight."""
        scheduler = self._scheduler
        if self.current is not None:
            return False
        return not scheduler.waiting.has_alone or not (scheduler.table.num_taken or scheduler.in_flight)

    def begin(self, request: Request) -> None:
        """Must be called when a request gets a slot."""
        if request.alone:
            self.current = request
            self._goal = 1 + max(request.num_known, request.reached)

    def end(self) -> None:
        """Lets a request go that has passed; if others wait for their trial, it gives way to them."""
        request, scheduler = self.current, self._scheduler
        if request is None:
            return
        if request.slot >= 0:
            if request.num_known < self._goal:
                return
            if scheduler.waiting.has_alone and scheduler.in_flight:
                scheduler.starved = True
                return
        self.current, request.alone, request.failures = None, False, 0
        self._failed.clear()
        if request.slot >= 0 and scheduler.waiting.has_alone:
            scheduler.queue_again(request)

    def note_fault(self, tried: Iterable[Request]) -> None:
        """Decides who is to be alone, of those that were in failed steps; they are not in the queue again yet."""
        on_trial, self.current = self.current, None
        if on_trial is not None and on_trial.failures > self._max_retries:
            self._fruitful = self._round
            self._failed.add(on_trial.request_id)
        left = [request for request in tried if request.failures <= self._max_retries]
        due = [request for request in left if request.failures == self._max_retries]
        if on_trial is None and any(self._may_be_tried(request) for request in due):
            self._round += 1
            self._failed.clear()
            for request in left:
                request.alone, request.trial, request.tried_at = True, self._round, request.furthest
        if len(self._failed) >= _MOST_IN_ROW:
            self._scheduler.waiting.join_alone()

    def _may_be_tried(self, request: Request) -> bool:
        return request.trial <= self._fruitful or request.furthest >= request.tried_at + _FAR
