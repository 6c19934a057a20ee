"""Scheduler: decides what the next step computes. It knows no phases.

Every running request has `computed` chasing `total`; a step spends two budgets (tokens, scored
positions) on running requests first, then on waiting ones. A chunk of a prompt, a prefix hit, a
resumed request and a decoded token are then the same case.
"""

import time
from bisect import insort
from collections.abc import Callable
from operator import attrgetter

import numpy as np

from jaxinfer.config import CacheConfig, SchedulerConfig
from jaxinfer.engine.admission import make_admission
from jaxinfer.engine.burst import add_burst, burst_counts
from jaxinfer.engine.entry import Entry
from jaxinfer.engine.fair_line import FairLine
from jaxinfer.engine.forks import Forks
from jaxinfer.engine.kv import KVCache
from jaxinfer.engine.plan import StepPlan
from jaxinfer.engine.plan_builder import PlanBuilder
from jaxinfer.engine.policy import Policy, make_policy
from jaxinfer.engine.request import Request, Status
from jaxinfer.engine.rows import Fit, add_row, fit
from jaxinfer.engine.shapes import EngineShapes
from jaxinfer.engine.slots import SlotTable
from jaxinfer.engine.trials import Trials
from jaxinfer.engine.waiting import WaitingQueue

_BY_RANK = attrgetter("rank")
_TENANT_PARTS = {"off": 0, "key": 1, "user": 2}


class Scheduler:
    """Slots, pages and the queue; makes plans.

    The caller dispatches every plan before it asks for the next, and reports each collected step by
    lowering `in_flight`. `starved` asks the caller to collect all steps in flight before the next plan:
    nobody is preempted while a result on its way may free pages.
    """

    def __init__(
        self,
        shapes: EngineShapes,
        scheduler: SchedulerConfig,
        cache: CacheConfig,
        policy: Policy | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ):
        self.shapes = shapes
        self.config = scheduler
        self.clock = clock
        self.kv = KVCache(
            shapes, enable_prefix_caching=cache.enable_prefix_caching, max_cached_tokens=cache.prefix_cache_max_tokens
        )
        self.policy = policy or make_policy(scheduler, self.kv.cached_tokens)
        self.table = SlotTable(shapes.max_num_seqs, shapes.max_model_len)
        self._tenant_parts = _TENANT_PARTS[scheduler.fair_share]
        self.waiting = WaitingQueue(FairLine() if self._tenant_parts else None)
        self.forks = Forks(self.kv, self.table, self.waiting)
        self.running: list[Request] = []
        self.in_flight = 0
        self.starved = False
        self.num_preemptions = 0
        self._order: np.ndarray | None = None
        self._steps = 0
        self._chunk = scheduler.long_prefill_token_threshold or shapes.max_num_batched_tokens
        self.trials = Trials(self, scheduler.max_step_retries)
        self.entry = Entry(self, scheduler, cache)

    # Requests come and go

    def add(self, request: Request) -> None:
        """Queues a new request."""
        request.queued_at = self.clock()
        request.rank = self.policy.rank(request)
        request.tenant = self.shared_among(request.tenant)
        self.waiting.push(request)

    def shared_among(self, tenant: tuple[str, ...]) -> tuple[str, ...]:
        """What of a tenant's names tells it from others: all, the API key, or none."""
        return (*tenant, "", "")[: self._tenant_parts]

    def finish(self, request: Request) -> None:
        """Takes a request out wherever it is; its slot and pages are free for later plans."""
        waiting = request.status is Status.WAITING
        request.status = Status.FINISHED
        if waiting:
            self.waiting.remove(request)
        computed = request.prompt_len if request.slot < 0 else int(self.table.computed[request.slot])
        self.waiting.settle(request, computed)
        self._let_go(request)

    def preempt(self, request: Request) -> None:
        """Takes slot and pages from a running request, which will compute its tokens again."""
        self.queue_again(request)
        self.num_preemptions += 1
        request.preemptions += 1

    def start_over(self) -> None:
        """After the device has lost its pages and slots, and every step in flight: all requests are in the queue."""
        for request in [request for request in self.table.requests if request is not None]:
            self.queue_again(request)
        self.forks.drop_all_holds()
        self.kv.forget_all()
        self.in_flight = 0
        self.entry.blocked = None

    def queue_again(self, request: Request) -> None:
        """Takes slot and pages from a request, whoever wants them."""
        self._let_go(request)
        if request.owes_prompt_logprobs:
            request.prompt_logprobs = [None]
        request.status = Status.WAITING
        self.waiting.push(request)

    def _let_go(self, request: Request) -> None:
        if request.slot >= 0:
            self.table.release(request)
            if request in self.running:
                self.running.remove(request)
            self._order = None
        self.forks.leave(request)
        self.kv.release(request)

    # Planning

    def schedule(self) -> StepPlan | None:
        """The next step, or None where nothing can be computed now."""
        self.starved = False
        plan = PlanBuilder(self.shapes, self.table)
        self.forks.part()
        self.entry.begin()
        if self.kv.has_windows:
            self._trim_windows()
        if not self._plan_burst(plan):
            self._plan_one_step(plan)
        if plan.empty and not plan.admissions:
            return None
        return self._advance(plan)

    def _plan_burst(self, plan: PlanBuilder) -> bool:
        """Several decode steps for all that run, unless somebody who waits could enter now."""
        if self.shapes.decode_steps == 1 or self.starved:
            return False
        order = self._running_slots()
        counts = burst_counts(self, order)
        if counts is None:
            return False
        self.entry.partial = 0
        if self.entry.somebody_may_enter():
            return False
        add_burst(self, plan, order, counts)
        return True

    def _plan_one_step(self, plan: PlanBuilder) -> None:
        if self._plan_decode(plan):
            self.entry.partial = 0
        else:
            self._plan_chunks(plan)
        self.entry.admit_waiting(plan)

    def _plan_decode(self, plan: PlanBuilder) -> bool:
        """Rows whose one pending token the device holds; True where those are all that run."""
        table, order = self.table, self._running_slots()
        computed = table.computed[order]
        ready = (table.total[order] - computed == 1) & table.draws[order]
        everyone = bool(ready.all())
        decode = order if everyone else order[ready]
        full = order[ready & (computed >= table.capacity[order])]
        if len(full) and not self._grow_together(plan, full):
            blocked = [slot for slot in full.tolist() if not self._grow_slot(plan, slot)]
            gone = [slot for slot in decode.tolist() if table.requests[slot] is None]
            decode = decode[~np.isin(decode, blocked + gone)]
        plan.add_decode(decode)
        return everyone

    def _grow_together(self, plan: PlanBuilder, slots: np.ndarray) -> bool:
        """A page for each of `slots` at once; False where there are too few, and somebody must give way."""
        table, size = self.table, self.shapes.page_size
        requests = [request for request in map(table.requests.__getitem__, slots.tolist()) if request is not None]
        pages = self.kv.grow_each(requests)
        if pages is None:
            return False
        plan.add_page_each(slots, table.capacity[slots] // size, pages)
        table.capacity[slots] += size
        return True

    def _plan_chunks(self, plan: PlanBuilder) -> None:
        """Rows of running requests with more than one pending token, or with prompt tokens of a parent."""
        table, order = self.table, self._running_slots()
        pending = table.total[order] - table.computed[order]
        chunked = order[(pending > 1) | ((pending == 1) & ~table.draws[order])]
        sharers = len(chunked) + self.entry.somebody_may_enter() if self.config.max_num_partial_prefills else 1
        self.entry.partial = 0
        for slot in chunked.tolist():
            request = table.requests[slot]
            if request is not None and not self.starved:
                if self.policy.preempts and self.config.max_num_partial_prefills is None:
                    self.entry.admit_waiting(plan, outranking=request)
                end = self._plan_chunk(plan, request, -(-plan.tokens_left // sharers))
                self.entry.partial += int(table.total[slot] - end > table.draws[slot])
            sharers = max(1, sharers - 1)

    def _plan_chunk(self, plan: PlanBuilder, request: Request, room: int) -> int:
        """Adds a row of at most `room` tokens; returns how many positions are computed after it."""
        slot = request.slot
        start = int(self.table.computed[slot])
        count, scored = self.fit(plan, request, int(self.table.total[slot]) - start, room)
        if not count or not self._grow(plan, request, start + count):
            return start
        self.send_new_pages(plan, request)
        self.add_row(plan, request, start, count, scored)
        return start + count

    def _grow_slot(self, plan: PlanBuilder, slot: int) -> bool:
        request = self.table.requests[slot]
        if request is None or self.starved or not self._grow(plan, request, int(self.table.computed[slot]) + 1):
            return False
        self.send_new_pages(plan, request)
        return True

    def send_new_pages(self, plan: PlanBuilder, request: Request) -> None:
        """Tells the device of pages that a request has got since it was told last."""
        size, slot = self.shapes.page_size, request.slot
        first = int(self.table.capacity[slot]) // size
        if len(request.pages[0]) > first:
            plan.add_pages(slot, first, [pages[first:] for pages in request.pages])
            self.table.capacity[slot] = len(request.pages[0]) * size

    def _grow(self, plan: PlanBuilder, request: Request, num_tokens: int) -> bool:
        """Pages for a running request, by preemption once everything in flight was collected."""
        while not self.kv.grow(request, num_tokens):
            if self.in_flight:
                self.starved = True
                return False
            if self.forks.drop_last_hold():
                continue
            victim = self.running[-1]
            if plan.has_row[victim.slot]:
                # It will give way when it asks for its own next page, or finish before.
                return False
            self.preempt(victim)
            if victim is request:
                return False
        return True

    def fit(self, plan: PlanBuilder, request: Request, pending: int, room: int) -> Fit:
        """How much of `pending` tokens a row of at most `room` takes."""
        scored = plan.scored_left
        if request.owes_prompt_logprobs:
            # It could use every position for as long as its prompt takes; each other row needs one to draw.
            entering = min(self.table.num_free, len(self.waiting))
            scored -= len(self.running) + entering - int(plan.has_row.sum()) - 1
        return fit(request, pending, min(room, self._chunk), scored, split=self.config.enable_chunked_prefill)

    def add_row(self, plan: PlanBuilder, request: Request, start: int, count: int, scored: int) -> None:
        """A row of a request that has a slot."""
        add_row(plan, request, start, count, scored, total=int(self.table.total[request.slot]))

    def _advance(self, builder: PlanBuilder) -> StepPlan:
        """Closes a plan: its rows count as computed, its draws as tokens in flight."""
        plan = builder.finish(self._steps)
        table = self.table
        table.computed[plan.slots] += plan.counts
        drawing = plan.slots if plan.decode_only else plan.slots[plan.draws]
        table.total[drawing] += plan.counts if plan.burst else 1
        done = drawing[table.total[drawing] >= table.limit[drawing]]
        for slot in done.tolist():
            request = table.requests[slot]
            assert request is not None
            request.status = Status.DRAINING
            self.running.remove(request)
            self._order = None
        self._steps += 1
        self.in_flight += 1
        return plan

    # Admission

    def enter(self, plan: PlanBuilder, request: Request, computed: int, total: int) -> None:
        """A slot for the request that `waiting.peek` has just returned."""
        self.waiting.take(request)
        self.waiting.charge(request, computed)
        request.status = Status.RUNNING
        if request.scheduled_at is None:
            request.scheduled_at = self.clock()
        capacity = len(request.pages[0]) * self.shapes.page_size
        self.table.take(request, computed=computed, total=total, capacity=capacity)
        insort(self.running, request, key=_BY_RANK)
        self.forks.enter(request)
        self.trials.begin(request)
        self._order = None
        plan.admissions.append(make_admission(request))

    # Small helpers

    def _running_slots(self) -> np.ndarray:
        if self._order is None:
            self._order = np.array([request.slot for request in self.running], np.int32)
        return self._order

    def _trim_windows(self) -> None:
        # By what was collected, not by what was dispatched: the tree is offered a page before it is dropped.
        table, order = self.table, self._running_slots()
        for slot in order[table.collected[order] >= table.next_trim[order]].tolist():
            request = table.requests[slot]
            assert request is not None
            table.next_trim[slot] = self.kv.trim(request, int(table.collected[slot]))
