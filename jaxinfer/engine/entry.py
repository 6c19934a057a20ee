"""Entry: who of those that wait gets a slot, and who gives way."""

from typing import TYPE_CHECKING

from jaxinfer.config import CacheConfig, SchedulerConfig
from jaxinfer.engine.blocked import Blocked
from jaxinfer.engine.giving_way import victims_for_pages, victims_for_slots
from jaxinfer.engine.plan_builder import PlanBuilder
from jaxinfer.engine.request import Request

if TYPE_CHECKING:
    from jaxinfer.engine.scheduler import Scheduler


class Entry:
    """The way from a scheduler's queue into its slots.

    blocked: who found too few pages last. partial: prompts that the plan in the making leaves half computed.
    """

    def __init__(self, scheduler: "Scheduler", config: SchedulerConfig, cache: CacheConfig):
        self._scheduler = scheduler
        self.blocked: Blocked | None = None
        self.partial = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.admitted_tokens = 0
        self._first_victim: Request | None = None
        self._preempted = 0
        self._max_partial = config.max_num_partial_prefills
        smallest = min(group.num_pages for group in scheduler.shapes.groups)
        self._watermark = int(cache.kv_watermark * smallest)

    def begin(self) -> None:
        """A plan is begun: where the policy says so, running requests give way to waiting ones."""
        self._first_victim = None
        self._scheduler.trials.end()
        if self._scheduler.policy.preempts and not self._scheduler.trials.pending:
            self._give_way()
        self._preempted = self._scheduler.num_preemptions

    def _give_way(self) -> None:
        """Preempts running requests for waiting ones that outrank them and lack a slot or pages."""
        scheduler = self._scheduler
        head = scheduler.waiting.peek(deferred=self.takes_long)
        if head is None or not scheduler.running or head.rank > scheduler.running[-1].rank:
            return
        if not scheduler.table.num_free:
            victims = victims_for_slots(scheduler.waiting, scheduler.running, deferred=self.takes_long)
        elif self.blocked is None or not self._still_blocked(head) or scheduler.forks.drop_last_hold(head):
            return
        else:
            victims = victims_for_pages(head, self.blocked.missing, scheduler.running)
        if victims and scheduler.in_flight:
            scheduler.starved = True
            return
        for victim in victims:
            scheduler.preempt(victim)
            self._first_victim = victim

    def admit_waiting(self, plan: PlanBuilder, *, outranking: Request | None = None) -> None:
        """Gives waiting requests slots while slots, pages and both budgets last; only those before `outranking`."""
        scheduler = self._scheduler
        # A victim is not resumed by the plan that preempted it, nor is anyone admitted by one that was short of pages.
        if scheduler.num_preemptions != self._preempted or scheduler.starved:
            return
        left = plan.tokens_left, plan.scored_left
        while (
            scheduler.table.num_free and plan.tokens_left > 0 and plan.scored_left > 0 and scheduler.trials.may_enter()
        ):
            request = scheduler.waiting.peek(deferred=self.takes_long)
            if request is None or any(
                other and request.rank >= other.rank for other in (self._first_victim, outranking)
            ):
                return
            if self._admit_held(plan, request) if request.held else self._admit(plan, request, left):
                continue
            # With nobody running, pages that waiting choices hold would block the queue for good.
            if scheduler.running or scheduler.in_flight or not scheduler.forks.drop_last_hold():
                return

    def _admit(self, plan: PlanBuilder, request: Request, left: tuple[int, int]) -> bool:
        """A slot for a request that holds nothing, and a row for what of it fits; False: nobody else can enter.

        left: both budgets as they were before anyone was admitted.
        """
        scheduler = self._scheduler
        if self._still_blocked(request):
            return False
        goal = request.num_known - request.is_parent
        start = scheduler.kv.match(request)
        count, scored = scheduler.fit(plan, request, goal - start, plan.tokens_left)
        partial = goal - start - count > (not request.is_parent)
        if partial and not self.takes_long:
            scheduler.kv.release(request)
            # NOTE: one that was not the first to be tried may fit into the next plan.
            passed = left == (plan.tokens_left, plan.scored_left)
            if passed:
                scheduler.waiting.defer(request)
            return passed
        reserve = self._watermark if scheduler.running else 0
        fits = count > 0 or start == goal
        if not fits or not scheduler.kv.grow(request, start + count, reserve=reserve):
            missing = scheduler.kv.missing(request, start + count, reserve=reserve)
            scheduler.kv.release(request)
            if fits:
                self.blocked = Blocked(request, self._available(), missing)
            return False
        self.blocked = None
        self.partial += partial
        self._count_lookup(request, start)
        scheduler.enter(plan, request, start, goal)
        if count:
            scheduler.add_row(plan, request, start, count, scored)
        return True

    def _admit_held(self, plan: PlanBuilder, request: Request) -> bool:
        """A slot for a choice that waits with its parent's pages; it owns its last page from now on."""
        scheduler = self._scheduler
        start = request.held_computed
        if start % scheduler.shapes.page_size:
            if not plan.copies_left:
                return False
            copies = scheduler.kv.own_last_page(request)
            if copies is not None:
                plan.add_copies(copies)
        else:
            copies = scheduler.kv.grow(request, start + 1) or None
        if copies is None:
            self.blocked = Blocked(request, self._available(), 1)
            return False
        scheduler.enter(plan, request, start, request.num_known)
        scheduler.add_row(plan, request, start, 1, 1)
        return True

    def somebody_may_enter(self) -> bool:
        """True where a request that waits could use a share of this step's tokens."""
        scheduler = self._scheduler
        head = scheduler.waiting.peek(deferred=self.takes_long) if scheduler.table.num_free else None
        return head is not None and not self._still_blocked(head)

    @property
    def takes_long(self) -> bool:
        """True where a prompt may enter that one step does not compute whole."""
        return self._max_partial is None or self.partial < self._max_partial

    def _still_blocked(self, request: Request) -> bool:
        return (
            self.blocked is not None
            and bool(self._scheduler.running)
            and self.blocked.still(request, self._available())
        )

    def _available(self) -> list[int]:
        return [pool.num_available for pool in self._scheduler.kv.pools]

    def _count_lookup(self, request: Request, hit: int) -> None:
        if request.was_admitted:
            return
        request.was_admitted = True
        request.cached_tokens = hit
        self.admitted_tokens += request.prompt_len
        if self._scheduler.kv.caching:
            self.prefix_queries += request.prompt_len
            self.prefix_hits += hit
