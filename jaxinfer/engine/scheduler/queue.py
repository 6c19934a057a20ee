"""WaitingQueue: sequences without a slot."""

import heapq

from jaxinfer.engine.scheduler.fair_order import FairOrder
from jaxinfer.engine.scheduler.queue_limit import TenantCounts
from jaxinfer.engine.scheduler.rank_order import Heap, RankOrder, head_of, without_gone
from jaxinfer.engine.sequence import Sequence, Status


class WaitingQueue:
    """By rank, or by rank within what each tenant is due.

    Long prompts that wait for others of their kind may be deferred: short ones pass them, and they keep their rank.
    Those that are to be computed alone come before all others.
    line: the order of all others. by_tenant: requests of which at least one sequence waits.
    """

    def __init__(self, line: RankOrder | FairOrder | None = None) -> None:
        self._line = line or RankOrder()
        self._isolated: Heap = []
        self._length = 0
        self._by_request: dict[str, int] = {}
        self._deferred: dict[str, set[Sequence]] = {}
        self.by_tenant = TenantCounts()

    def __len__(self) -> int:
        """Sequences that wait."""
        return self._length

    @property
    def num_requests(self) -> int:
        """Requests of which at least one sequence waits."""
        return len(self._by_request)

    @property
    def num_deferred(self) -> int:
        """Requests of which a sequence was deferred. Safe in any thread."""
        return len(self._deferred)

    @property
    def in_rank_order(self) -> bool:
        """True where the order is that of ranks alone."""
        return self._line.in_rank_order

    @property
    def has_isolated(self) -> bool:
        """True where the next sequence is to be computed alone."""
        return self._first_isolated() is not None

    def end_isolation(self) -> None:
        """Nobody that waits is to be computed alone any more."""
        for _, sequence in self._isolated:
            sequence.isolated = False
            if sequence.status is Status.WAITING:
                self._line.push(sequence)
        self._isolated = []

    def push(self, sequence: Sequence) -> None:
        if sequence.isolated:
            heapq.heappush(self._isolated, (sequence.rank, sequence))
        else:
            self._line.push(sequence)
        self._length += 1
        number = self._by_request.get(sequence.request_id, 0)
        self._by_request[sequence.request_id] = number + 1
        if not number:
            self.by_tenant.add(sequence.tenant)

    def peek(self, *, deferred: bool = True) -> Sequence | None:
        """The next sequence, which stays in the queue. deferred: whether a deferred one may be next."""
        return self._first_isolated() or self._line.peek(deferred=deferred)

    def take(self, sequence: Sequence) -> None:
        """Takes out what `peek` has just returned."""
        # NOTE: not by its flag, which goes while it waits when its isolation has ended.
        if self._first_isolated() is sequence:
            heapq.heappop(self._isolated)
        else:
            self._line.take(sequence)
        self._forget(sequence)

    def defer(self, sequence: Sequence) -> None:
        """Lets others pass the sequence that `peek` has just returned."""
        if self._first_isolated() is not sequence:
            self._line.defer(sequence)
            self._deferred.setdefault(sequence.request_id, set()).add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Takes out a sequence whose status is no longer WAITING."""
        self._forget(sequence)
        if not any(entry[1] is sequence for entry in self._isolated):
            self._line.remove(sequence)
        elif len(self._isolated) > 2 * self._length + 64:
            self._isolated = without_gone(self._isolated)

    def charge(self, sequence: Sequence, start: int) -> None:
        """Must be called when a sequence gets a slot, with `start` of its positions computed."""
        self._line.charge(sequence, start)

    def settle(self, sequence: Sequence, computed: int) -> None:
        """Must be called when a sequence ends, wherever it is, with so many of its positions computed."""
        self._line.settle(sequence, computed)

    def _first_isolated(self) -> Sequence | None:
        head = head_of(self._isolated)
        return None if head is None else head[1]

    def _forget(self, sequence: Sequence) -> None:
        self._length -= 1
        left = self._by_request[sequence.request_id] - 1
        if left:
            self._by_request[sequence.request_id] = left
        else:
            del self._by_request[sequence.request_id]
            self.by_tenant.remove(sequence.tenant)
        deferred = self._deferred.get(sequence.request_id)
        if deferred is not None:
            deferred.discard(sequence)
            if not deferred:
                del self._deferred[sequence.request_id]
