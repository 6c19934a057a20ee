"""WaitingQueue: requests without a slot."""

import heapq

from jaxinfer.engine.scheduler.fair_order import FairOrder
from jaxinfer.engine.scheduler.rank_order import RankOrder
from jaxinfer.engine.scheduler.tenant_counts import TenantCounts
from jaxinfer.engine.sequence import Request, Status

_Heap = list[tuple[tuple[int, ...], Request]]


class WaitingQueue:
    """By rank, or by rank within what each tenant is due.

    Long prompts that wait for others of their kind may be deferred: short ones pass them, and they keep their rank.
    Those that are to be computed alone come before all others.
    line: the order of all others. by_tenant: requests of which at least one choice waits.
    """

    def __init__(self, line: RankOrder | FairOrder | None = None) -> None:
        self._line = line or RankOrder()
        self._isolated: _Heap = []
        self._length = 0
        self._choices: dict[str, int] = {}
        self._deferred: dict[str, set[Request]] = {}
        self.by_tenant = TenantCounts()

    def __len__(self) -> int:
        """Choices that wait."""
        return self._length

    @property
    def num_requests(self) -> int:
        """Requests of which at least one choice waits."""
        return len(self._choices)

    @property
    def num_entries(self) -> int:
        """Entries kept, those of choices that are gone included."""
        return self._line.num_entries + len(self._isolated)

    @property
    def num_deferred(self) -> int:
        """Requests that were deferred. Safe in any thread."""
        return len(self._deferred)

    @property
    def in_rank_order(self) -> bool:
        """True where the order is that of ranks alone."""
        return self._line.in_rank_order

    @property
    def has_isolated(self) -> bool:
        """True where the next request is to be computed alone."""
        return self._first_isolated() is not None

    def end_isolation(self) -> None:
        """Nobody that waits is to be computed alone any more."""
        for _, request in self._isolated:
            request.isolated = False
            if request.status is Status.WAITING:
                self._line.push(request)
        self._isolated = []

    def push(self, request: Request) -> None:
        if request.isolated:
            heapq.heappush(self._isolated, (request.rank, request))
        else:
            self._line.push(request)
        self._length += 1
        choices = self._choices.get(request.request_id, 0)
        self._choices[request.request_id] = choices + 1
        if not choices:
            self.by_tenant.add(request.tenant)

    def peek(self, *, deferred: bool = True) -> Request | None:
        """The next request, which stays in the queue. deferred: whether a deferred one may be next."""
        return self._first_isolated() or self._line.peek(deferred=deferred)

    def take(self, request: Request) -> None:
        """Takes out what `peek` has just returned."""
        # NOTE: not by its flag, which goes while it waits when its trial has ended.
        if self._first_isolated() is request:
            heapq.heappop(self._isolated)
        else:
            self._line.take(request)
        self._forget(request)

    def defer(self, request: Request) -> None:
        """Lets others pass the request that `peek` has just returned."""
        if self._first_isolated() is not request:
            self._line.defer(request)
            self._deferred.setdefault(request.request_id, set()).add(request)

    def remove(self, request: Request) -> None:
        """Takes out a request whose status is no longer WAITING."""
        self._forget(request)
        if not any(entry[1] is request for entry in self._isolated):
            self._line.remove(request)
        elif len(self._isolated) > 2 * self._length + 64:
            self._isolated = [entry for entry in self._isolated if entry[1].status is Status.WAITING]
            heapq.heapify(self._isolated)

    def charge(self, request: Request, start: int) -> None:
        """Must be called when a request gets a slot, with `start` of its positions computed."""
        self._line.charge(request, start)

    def settle(self, request: Request, computed: int) -> None:
        """Must be called when a request ends, wherever it is, with so many of its positions computed."""
        self._line.settle(request, computed)

    def _first_isolated(self) -> Request | None:
        # Removed requests are skipped when they surface: to search for them would cost the queue's length.
        while self._isolated and self._isolated[0][1].status is not Status.WAITING:
            heapq.heappop(self._isolated)
        return self._isolated[0][1] if self._isolated else None

    def _forget(self, request: Request) -> None:
        self._length -= 1
        left = self._choices[request.request_id] - 1
        if left:
            self._choices[request.request_id] = left
        else:
            del self._choices[request.request_id]
            self.by_tenant.remove(request.tenant)
        deferred = self._deferred.get(request.request_id)
        if deferred is not None:
            deferred.discard(request)
            if not deferred:
                del self._deferred[request.request_id]
