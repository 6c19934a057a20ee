"""Scheduler: decides what the next step computes. It knows no phases.

Every running sequence has `computed` chasing `total`; a step spends two budgets (tokens, scored positions) on running
sequences first, then on waiting ones. A chunk of a prompt, a prefix hit, a resumed sequence and a decoded token are
then the same case.
"""

import math
import time
from collections import abc

from jaxinfer.config import CacheConfig, SchedulerConfig
from jaxinfer.engine.scheduler.admission import Admission
from jaxinfer.engine.scheduler.block_allocator import BlockAllocator
from jaxinfer.engine.scheduler.decode import Decode
from jaxinfer.engine.scheduler.draft_policy import DraftPolicy
from jaxinfer.engine.scheduler.fault_isolation import FaultIsolation
from jaxinfer.engine.scheduler.policy import Policy, make_policy
from jaxinfer.engine.scheduler.prefill import Prefill
from jaxinfer.engine.scheduler.queue_limit import TenantCounts, has_room
from jaxinfer.engine.scheduler.queue_wait import Deadlines, QueueWait, StepClock, place_of
from jaxinfer.engine.scheduler.rows import HostRows
from jaxinfer.engine.scheduler.state import SchedulerState
from jaxinfer.engine.sequence import Sequence
from jaxinfer.engine.step.builder import PlanBuilder
from jaxinfer.engine.step.plan import StepPlan
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.errors import QueueFullError

_TENANT_PARTS = {"off": 0, "key": 1, "user": 2}


class Scheduler:
    """Makes plans.

    The caller dispatches every plan before it asks for the next, and reports each collected step by lowering
    `state.in_flight`; `state.must_drain` asks it to collect all steps in flight before the next plan.
    """

    def __init__(
        self,
        shapes: EngineShapes,
        scheduler: SchedulerConfig,
        cache: CacheConfig,
        policy: Policy | None = None,
        clock: abc.Callable[[], int] = time.monotonic_ns,
    ):
        self.state = state = SchedulerState(shapes, scheduler, cache, clock)
        self.policy = policy or make_policy(scheduler, state.cached_tokens)
        self.isolation = FaultIsolation(state, scheduler.max_step_retries)
        rows, self._blocks = HostRows(state, scheduler), BlockAllocator(state)
        self.admission = Admission(state, self.policy, scheduler, cache, isolation=self.isolation, rows=rows)
        drafting, self.drafts = shapes.drafting, None
        if drafting is not None:
            self.drafts = DraftPolicy(clock, drafting.tokens, shapes.stages)
        self._decode = Decode(state, self._blocks, splits_prompts=scheduler.enable_chunked_prefill)
        self._prefill = Prefill(state, self.policy, scheduler, rows=rows, blocks=self._blocks, admission=self.admission)
        self._max_waiting = scheduler.max_waiting
        self._step_clock = StepClock(clock)
        self._queue_wait = QueueWait(self._step_clock, shapes.all_seqs)
        self._deadlines = Deadlines(self._step_clock)
        self._in_order_of_arrival = scheduler.scheduling_policy == "fcfs"
        self._tenant_parts = _TENANT_PARTS[scheduler.fair_share]
        self._steps = 0

    def add(self, sequence: Sequence, max_wait: float | None = None) -> None:
        """Queues a new sequence. max_wait: seconds for which it may wait for its first slot; None: any time."""
        if max_wait is not None:
            self._deadlines.add(sequence, max_wait)
        sequence.queued_at = self.state.clock()
        sequence.rank = self.policy.rank(sequence)
        sequence.tenant = self.tenant_of(sequence.tenant)
        self.state.queue.push(sequence)

    def tenant_of(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The part of a tenant's names that tells it from others: all, the API key, or none."""
        return (*names, "", "")[: self._tenant_parts]

    def check_room(self, tenant: tuple[str, ...], max_expected_wait: float | None, *submitted: TenantCounts) -> None:
        """Raise QueueFullError if too many requests wait for another of this tenant, or if it is likely to wait longer
        than is allowed. Safe in any thread.

        max_expected_wait: seconds; None: any time. Only under fcfs is a request's place known before it waits.
        submitted: requests that are to be queued before it.
        """
        waiting = (self.state.queue.by_tenant, *submitted)
        wait = self._queue_wait.estimate(place_of(tenant, *waiting))
        too_long = max_expected_wait is not None and self._in_order_of_arrival and wait > max_expected_wait
        if too_long or not has_room(self._max_waiting, tenant, *waiting):
            raise QueueFullError(sum(counts.total for counts in waiting), max(1, math.ceil(wait)))

    def expected_wait(self) -> float:
        """Return the seconds until a request gets a slot that comes after all that wait. Safe in any thread."""
        return self._queue_wait.estimate(self.state.queue.num_requests)

    def expired(self) -> abc.Iterator[Sequence]:
        """Yield sequences that have waited for their first slot for as long as they may."""
        return self._deadlines.expired()

    def retry(self, discarded: abc.Sequence[StepPlan]) -> list[Sequence]:
        """After a step fault: queues every sequence that holds anything; returns those that have failed too often."""
        failed = self.isolation.retry(discarded)
        self.admission.failures.forget_all()
        return failed

    def schedule(self) -> StepPlan | None:
        """The next step, or None where nothing can be computed now."""
        self.state.must_drain = False
        self._step_clock.advance()
        plan = PlanBuilder(self.state.shapes, self.state.table)
        self._fill(plan)
        admitted = sum(each.sequence_index == 0 for each in plan.admissions)
        self._queue_wait.planned(waiting=self.state.queue.num_requests, admitted=admitted)
        if plan.empty and not plan.admissions:
            return None
        finished = plan.finish(self._steps)
        self.state.dispatch(finished)
        if self.drafts is not None:
            self.drafts.planned(finished)
        self._steps += 1
        return finished

    def _fill(self, plan: PlanBuilder) -> None:
        self.state.forks.part()
        self.isolation.release_passed()
        self.admission.begin_plan()
        if self.state.kv.has_windows:
            self._blocks.trim_windows()
        if not self._plan_multi_token(plan):
            if self._decode.plan(plan, self._steps):
                self.admission.num_partial = 0
            else:
                self._prefill.plan(plan)
            self.admission.admit_waiting(plan)
        if plan.empty and not plan.admissions:
            self._decode.plan_ahead(plan)

    def _plan_multi_token(self, plan: PlanBuilder) -> bool:
        """Several tokens for all running sequences, or for those that are due, unless a waiting one could enter now, or
        drafts do not pay."""
        slots = self._decode.multi_token_slots(self._steps)
        if not len(slots) or not self._decode.may_take_several(slots):
            return False
        rows = self._decode.multi_token(slots, self._most_tokens(len(slots)))
        if rows is None:
            return False
        self.admission.num_partial = 0
        if self.admission.somebody_may_enter():
            return False
        self._decode.plan_multi_token(plan, rows)
        return True

    def _most_tokens(self, rows: int) -> int:
        """Return the most tokens that a row may get in the next step."""
        if self.drafts is None:
            return self.state.shapes.row_tokens
        table = self.state.table
        return 1 + self.drafts.drafts(rows, table.prediction, table.num_constrained > 0)
