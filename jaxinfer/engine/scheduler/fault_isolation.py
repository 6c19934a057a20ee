"""FaultIsolation: after step faults, which sequence makes steps fail; only that one ends."""

from collections import abc

from jaxinfer.engine.scheduler.state import SchedulerState
from jaxinfer.engine.sequence import Sequence
from jaxinfer.engine.step.plan import StepPlan

_MAX_FAILED_ALONE = 8
"""Requests that fail alone one after another until the fault is the device's and not theirs."""
_FAR = 16
"""Positions after which a sequence may be isolated again."""


class FaultIsolation:
    """A fault tells of a step, not of a sequence. Once a sequence of a failed step has one retry left, all sequences of
    that step are computed alone: one after another, before all others, each until it is past the position of the fault.

    Isolation runs in rounds. After a round in which nobody failed, its sequences are not isolated again until they have
    come far: they fail together, and end together. So do all where one after another fails alone.
    current: the sequence that is computed alone.
    """

    def __init__(self, state: SchedulerState, max_retries: int):
        self._state = state
        self._max_retries = max_retries
        self._round = 0
        self._fruitful = 0
        self._failed: set[str] = set()
        self._goal = 0
        self.current: Sequence | None = None

    @property
    def active(self) -> bool:
        """True while a sequence is computed alone, or waits for it."""
        return self.current is not None or self._state.queue.has_isolated

    def may_admit(self) -> bool:
        """Return whether the next sequence of the queue may have a slot; an isolated one needs all slots, and no step
        in flight."""
        if self.current is not None:
            return False
        return not self._state.queue.has_isolated or not (self._state.table.num_taken or self._state.in_flight)

    def note_admission(self, sequence: Sequence) -> None:
        """Must be called when a sequence gets a slot."""
        if sequence.isolated:
            self.current = sequence
            self._goal = 1 + max(sequence.num_known, sequence.most_computed)

    def release_passed(self) -> None:
        """Ends the isolation of a sequence that is past the fault; if others wait for theirs, it is queued again."""
        sequence, state = self.current, self._state
        if sequence is None:
            return
        if sequence.slot >= 0:
            if sequence.num_known < self._goal:
                return
            if state.queue.has_isolated and state.in_flight:
                state.must_drain = True
                return
        self.current, sequence.isolated, sequence.failures = None, False, 0
        self._failed.clear()
        if sequence.slot >= 0 and state.queue.has_isolated:
            state.requeue(sequence)

    def retry(self, discarded: abc.Sequence[StepPlan]) -> list[Sequence]:
        """Queues every sequence that holds anything again; returns those that were in failed steps too often.

        discarded: the plans whose results will not be read. Any sequence in them may be the cause, so each has failed
        once more. Failures are counted anew once a sequence is further than at any failure before: faults an hour apart
        end nobody, and a sequence that fails at one position again and again ends, since positions are bounded.
        """
        table = self._state.table
        # A slot that changed hands since was admitted by a later plan, which is discarded too.
        slots = {slot for plan in discarded for slot in plan.slots.tolist()}
        slots |= {init.slot for plan in discarded for init in plan.admissions}
        involved = [sequence for slot in sorted(slots) if (sequence := table.sequences[slot]) is not None]
        for sequence in involved:
            sequence.count_failure(int(table.collected[sequence.slot]), int(table.computed[sequence.slot]))
        self._isolate(involved)
        self._state.requeue_all()
        return [sequence for sequence in involved if sequence.failures > self._max_retries]

    def _isolate(self, involved: abc.Iterable[Sequence]) -> None:
        """Decides which sequences of failed steps are computed alone; they are not in the queue again yet."""
        isolated, self.current = self.current, None
        if isolated is not None and isolated.failures > self._max_retries:
            self._fruitful = self._round
            self._failed.add(isolated.request_id)
        left = [sequence for sequence in involved if sequence.failures <= self._max_retries]
        due = [sequence for sequence in left if sequence.failures == self._max_retries]
        if isolated is None and any(self._may_be_isolated(sequence) for sequence in due):
            self._round += 1
            self._failed.clear()
            for sequence in left:
                sequence.isolated, sequence.isolation_round = True, self._round
                sequence.isolated_at = sequence.most_collected
        if len(self._failed) >= _MAX_FAILED_ALONE:
            self._state.queue.end_isolation()

    def _may_be_isolated(self, sequence: Sequence) -> bool:
        return sequence.isolation_round <= self._fruitful or sequence.most_collected >= sequence.isolated_at + _FAR
