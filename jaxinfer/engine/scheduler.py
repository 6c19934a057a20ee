"""Scheduler: decides what the next step computes. It knows no phases.

Every running request has `computed` chasing `total`; a step spends two budgets (tokens, scored
positions) on running requests first, then on waiting ones. A chunk of a prompt, a prefix hit, a
resumed request and a decoded token are then the same case.
"""

from bisect import insort

import numpy as np

from jaxinfer.config import CacheConfig, SchedulerConfig
from jaxinfer.engine.admission import make_admission
from jaxinfer.engine.kv import KVCache
from jaxinfer.engine.plan import StepPlan
from jaxinfer.engine.plan_builder import PlanBuilder
from jaxinfer.engine.policy import FirstComeFirstServed, Policy, WaitingQueue
from jaxinfer.engine.request import Request, Status
from jaxinfer.engine.shapes import EngineShapes
from jaxinfer.engine.slots import SlotTable


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
    ):
        self.shapes = shapes
        self.config = scheduler
        self.policy = policy or FirstComeFirstServed()
        self.kv = KVCache(shapes, enable_prefix_caching=cache.enable_prefix_caching)
        self.table = SlotTable(shapes.max_num_seqs)
        self.waiting = WaitingQueue(self.policy)
        self.running: list[Request] = []
        self.in_flight = 0
        self.starved = False
        self.num_preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.new_choices: list[Request] = []
        """Choices that forks made and nobody has fetched yet."""
        self._held: list[Request] = []
        self._parents: list[Request] = []
        self._order: np.ndarray | None = None
        self._steps = 0
        self._blocked: tuple[Request, list[int]] | None = None
        smallest = min(group.num_pages for group in shapes.groups)
        self._watermark = int(cache.kv_watermark * smallest)
        self._chunk = scheduler.long_prefill_token_threshold or shapes.max_num_batched_tokens

    # Requests come and go

    def add(self, request: Request) -> None:
        """Queues a new request."""
        self.waiting.push(request)

    def finish(self, request: Request) -> None:
        """Takes a request out wherever it is; its slot and pages are free for later plans."""
        waiting = request.status is Status.WAITING
        request.status = Status.FINISHED
        if waiting:
            self.waiting.remove(request)
        self._let_go(request)

    def preempt(self, request: Request) -> None:
        """Takes slot and pages from a running request, which will compute its tokens again."""
        self._let_go(request)
        if request.owes_prompt_logprobs:
            request.prompt_logprobs = [None]
        request.status = Status.WAITING
        self.waiting.push(request)
        self.num_preemptions += 1

    def _let_go(self, request: Request) -> None:
        if request.slot >= 0:
            self.table.release(request)
            if request in self.running:
                self.running.remove(request)
            if request in self._parents:
                self._parents.remove(request)
            self._order = None
        if request.held:
            self._held.remove(request)
            request.held = False
        self.kv.release(request)

    # Planning

    def schedule(self) -> StepPlan | None:
        """The next step, or None where nothing can be computed now."""
        self.starved = False
        preempted = self.num_preemptions
        plan = PlanBuilder(self.shapes, self.table)
        self._fork_parents()
        if self.kv.has_windows:
            self._trim_windows()
        self._plan_decode(plan)
        self._plan_chunks(plan)
        # A victim is not resumed, nor anyone else admitted, by the plan that preempted it.
        if self.num_preemptions == preempted and not self.starved:
            self._plan_waiting(plan)
        if plan.empty and not plan.admissions:
            return None
        return self._advance(plan)

    def _plan_decode(self, plan: PlanBuilder) -> None:
        """Rows whose one pending token the device holds."""
        table, order = self.table, self._running_slots()
        decode = order[(table.total[order] - table.computed[order] == 1) & table.draws[order]]
        full = decode[table.computed[decode] >= table.capacity[decode]]
        if len(full) and not self._grow_together(plan, full):
            blocked = [slot for slot in full.tolist() if not self._grow_slot(plan, slot)]
            gone = [slot for slot in decode.tolist() if table.requests[slot] is None]
            decode = decode[~np.isin(decode, blocked + gone)]
        plan.add_decode(decode)

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
        for slot in chunked.tolist():
            request = table.requests[slot]
            if request is not None and not self.starved:
                self._plan_chunk(plan, request)

    def _plan_chunk(self, plan: PlanBuilder, request: Request) -> None:
        slot = request.slot
        start = int(self.table.computed[slot])
        count, scored = self._fit(plan, request, int(self.table.total[slot]) - start)
        if not count or not self._grow(plan, request, start + count):
            return
        self._send_new_pages(plan, request)
        self._add_row(plan, request, start, count, scored)

    def _grow_slot(self, plan: PlanBuilder, slot: int) -> bool:
        request = self.table.requests[slot]
        if request is None or self.starved or not self._grow(plan, request, int(self.table.computed[slot]) + 1):
            return False
        self._send_new_pages(plan, request)
        return True

    def _send_new_pages(self, plan: PlanBuilder, request: Request) -> None:
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
            if self._drop_youngest_hold():
                continue
            victim = self.running[-1]
            if plan.has_row[victim.slot]:
                # It will give way when it asks for its own next page, or finish before.
                return False
            self.preempt(victim)
            if victim is request:
                return False
        return True

    def _fit(self, plan: PlanBuilder, request: Request, pending: int) -> tuple[int, int]:
        """How many of `pending` tokens fit into this plan, and how many of those are scored."""
        count = min(pending, self._chunk, plan.tokens_left)
        if request.owes_prompt_logprobs:
            # Every position is scored: by its next token, or, at the prompt's end, by a draw.
            count = min(count, plan.scored_left)
            return count, count
        if count < pending and not self.config.enable_chunked_prefill:
            return 0, 0
        draws = count == pending and not request.is_parent
        if draws and not plan.scored_left:
            return count - 1, 0
        return count, int(draws)

    def _add_row(self, plan: PlanBuilder, request: Request, start: int, count: int, scored: int) -> None:
        end = start + count
        draws = end == int(self.table.total[request.slot]) and not request.is_parent
        targets: list[int] = []
        if request.owes_prompt_logprobs:
            targets = list(request.tokens[start + 1 : end + 1])
        if draws:
            targets = [*targets[: scored - 1], -1]
        plan.add_chunk(request.slot, request.tokens[start:end], targets, draws=draws)

    def _advance(self, builder: PlanBuilder) -> StepPlan:
        """Closes a plan: its rows count as computed, its draws as tokens in flight."""
        plan = builder.finish(self._steps)
        table = self.table
        table.computed[plan.slots] += plan.counts
        drawing = plan.slots[plan.draws]
        table.total[drawing] += 1
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

    def _plan_waiting(self, plan: PlanBuilder) -> None:
        """Gives waiting requests slots while slots, pages and both budgets last."""
        while self.table.num_free and plan.tokens_left > 0 and plan.scored_left > 0:
            request = self.waiting.peek()
            if request is None:
                return
            if self._admit_held(plan, request) if request.held else self._admit(plan, request):
                continue
            # With nobody running, pages that waiting choices hold would block the queue for good.
            if self.running or self.in_flight or not self._drop_youngest_hold():
                return

    def _admit(self, plan: PlanBuilder, request: Request) -> bool:
        """A slot for a request that holds nothing, and a row for what of it fits."""
        if self._still_blocked(request):
            return False
        goal = request.num_known - request.is_parent
        start = self.kv.match(request)
        count, scored = self._fit(plan, request, goal - start)
        reserve = self._watermark if self.running else 0
        fits = count > 0 or start == goal
        if not fits or not self.kv.grow(request, start + count, reserve=reserve):
            self.kv.release(request)
            if fits:
                self._blocked = request, self._available()
            return False
        self._blocked = None
        self._count_lookup(request, start)
        self._enter(plan, request, start, goal)
        if count:
            self._add_row(plan, request, start, count, scored)
        return True

    def _still_blocked(self, request: Request) -> bool:
        """True where a request found too few pages and no pool has more by now.

        To match a long prompt again in every step would cost more than the rest of the step.
        """
        if self._blocked is None or self._blocked[0] is not request or not self.running:
            return False
        return all(now <= then for now, then in zip(self._available(), self._blocked[1], strict=True))

    def _admit_held(self, plan: PlanBuilder, request: Request) -> bool:
        """A slot for a choice that waits with its parent's pages; it owns its last page from now on."""
        start = request.held_computed
        if start % self.shapes.page_size:
            copies = self.kv.own_last_page(request) if plan.copies_left else None
            if copies is None:
                return False
            plan.add_copies(copies)
        elif not self.kv.grow(request, start + 1):
            return False
        self._held.remove(request)
        request.held = False
        self._enter(plan, request, start, request.num_known)
        self._add_row(plan, request, start, 1, 1)
        return True

    def _enter(self, plan: PlanBuilder, request: Request, computed: int, total: int) -> None:
        self.waiting.pop()
        request.status = Status.RUNNING
        capacity = len(request.pages[0]) * self.shapes.page_size
        self.table.take(request, computed=computed, total=total, capacity=capacity)
        insort(self.running, request, key=self.policy.rank)
        if request.is_parent:
            self._parents.append(request)
        self._order = None
        plan.admissions.append(make_admission(request))

    def _count_lookup(self, request: Request, hit: int) -> None:
        if request.was_admitted:
            return
        request.was_admitted = True
        request.cached_tokens = hit
        if self.kv.caching:
            self.prefix_queries += request.prompt_len
            self.prefix_hits += hit

    # Forks

    def _fork_parents(self) -> None:
        """Parts the choices of every parent whose prompt but the last token is computed."""
        for parent in list(self._parents):
            slot = parent.slot
            if self.table.computed[slot] == self.table.total[slot] and self.kv.all_committed(parent):
                self._fork(parent)

    def _fork(self, parent: Request) -> None:
        children = [parent.child(index) for index in range(1, parent.fork_to)]
        for child in children:
            self.kv.fork(parent, child)
            child.held, child.held_computed = True, parent.prompt_len - 1
            child.cached_tokens, child.was_admitted = parent.cached_tokens, True
            self._held.append(child)
            self.waiting.push(child)
        parent.fork_to = 1
        self._parents.remove(parent)
        self.table.total[parent.slot] = parent.prompt_len
        self.table.draws[parent.slot] = True
        self.new_choices += children

    def _drop_youngest_hold(self) -> bool:
        """Lets a waiting choice give up its parent's pages: it will compute its prompt itself."""
        if not self._held:
            return False
        child = max(self._held, key=self.policy.rank)
        self._held.remove(child)
        child.held = False
        self.kv.release(child)
        return True

    # Small helpers

    def _running_slots(self) -> np.ndarray:
        if self._order is None:
            self._order = np.array([request.slot for request in self.running], np.int32)
        return self._order

    def _available(self) -> list[int]:
        return [pool.num_available for pool in self.kv.pools]

    def _trim_windows(self) -> None:
        # By what was collected, not by what was dispatched: the tree is offered a page before it is dropped.
        table, order = self.table, self._running_slots()
        for slot in order[table.collected[order] >= table.next_trim[order]].tolist():
            request = table.requests[slot]
            assert request is not None
            table.next_trim[slot] = self.kv.trim(request, int(table.collected[slot]))
