"""WaitingQueue: sequences without a slot."""

import heapq
from bisect import insort
from collections import abc
from operator import attrgetter

from jaxinfer.engine.scheduler.fair_order import FairOrder
from jaxinfer.engine.scheduler.queue_limit import TenantCounts
from jaxinfer.engine.scheduler.rank_order import Heap, RankOrder, head_of, without_gone
from jaxinfer.engine.sequence import Sequence, Status

_BY_RANK = attrgetter("rank")


class WaitingQueue:
    """A queue by rank, or by rank within what each tenant is due.

    Long prompts that wait for others of their kind may be deferred: short ones pass them, and they keep their rank.
    Isolated sequences come before all others. A fork whose shard has no room lets others pass, and keeps its rank; it
    has had its turn, so among the sequences for a shard with room it is next unless another has a better rank.
    line: the order of all others. by_tenant: requests of which at least one sequence waits. num_tokens: tokens of all
    waiting sequences, cached ones included; a fork counts its last.
    """

    def __init__(self, line: RankOrder | FairOrder | None = None) -> None:
        self._line = line or RankOrder()
        self._isolated: Heap = []
        self._passed: dict[int, list[Sequence]] = {}
        self._length = 0
        self.num_tokens = 0
        self._tokens: dict[Sequence, int] = {}
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
    def has_passed(self) -> bool:
        """True while a fork lets others pass. Safe in any thread."""
        return bool(self._passed)

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
        self._tokens[sequence] = 1 if sequence.is_waiting_fork else sequence.num_known
        self.num_tokens += self._tokens[sequence]
        number = self._by_request.get(sequence.request_id, 0)
        self._by_request[sequence.request_id] = number + 1
        if not number:
            self.by_tenant.add(sequence.tenant)

    def peek(self, *, deferred: bool = True) -> Sequence | None:
        """The next sequence, which stays in the queue. deferred: whether a deferred one may be next."""
        return self._peek(self._passed, deferred=deferred)

    def peek_for(self, shards: abc.Collection[int], *, deferred: bool = True) -> Sequence | None:
        """The next sequence that one of `shards` could take; forks before it that wait for another let others pass."""
        while (sequence := self._peek(shards, deferred=deferred)) is not None:
            if not sequence.is_waiting_fork or sequence.kv.shard in shards:
                break
            self._line.take(sequence)
            insort(self._passed.setdefault(sequence.kv.shard, []), sequence, key=_BY_RANK)
        return sequence

    def put_back(self, fork: Sequence) -> None:
        """Must be called before a waiting fork gives up its parent's blocks: any shard may take it then."""
        if self._unpass(fork):
            self._line.push(fork)

    def take(self, sequence: Sequence) -> None:
        """Takes out what `peek` has just returned."""
        # NOTE: not by its flag, which goes while it waits when its isolation has ended.
        if self._first_isolated() is sequence:
            heapq.heappop(self._isolated)
        elif not self._unpass(sequence):
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
        if self._unpass(sequence):
            return
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

    def _peek(self, shards: abc.Iterable[int], *, deferred: bool) -> Sequence | None:
        """The next sequence, of those that others pass only forks of `shards` counted."""
        isolated = self._first_isolated()
        if isolated is not None or not self._passed:
            return isolated or self._line.peek(deferred=deferred)
        first = self._line.peek(deferred=deferred)
        candidates = [self._passed[shard][0] for shard in shards if shard in self._passed]
        if first is not None:
            candidates.append(first)
        return min(candidates, key=_BY_RANK, default=None)

    def _unpass(self, sequence: Sequence) -> bool:
        """False where others do not pass it."""
        passed = self._passed.get(sequence.kv.shard) if sequence.is_waiting_fork else None
        if passed is None or sequence not in passed:
            return False
        passed.remove(sequence)
        if not passed:
            del self._passed[sequence.kv.shard]
        return True

    def _first_isolated(self) -> Sequence | None:
        head = head_of(self._isolated)
        return None if head is None else head[1]

    def _forget(self, sequence: Sequence) -> None:
        self._length -= 1
        self.num_tokens -= self._tokens.pop(sequence)
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
