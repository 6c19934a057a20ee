"""Preemption: which running sequences give way to waiting ones that outrank them."""

from collections import abc

from jaxinfer.engine.scheduler.allocation_failures import AllocationFailures
from jaxinfer.engine.scheduler.state import SchedulerState
from jaxinfer.engine.sequence import Sequence


class Preemption:
    """Finds victims for waiting sequences.

    watermark: blocks that an admission must leave free. max_chunk: most tokens of a sequence in one step.
    """

    def __init__(self, state: SchedulerState, failures: AllocationFailures, *, watermark: int, max_chunk: int):
        self._state = state
        self._failures = failures
        self._watermark = watermark
        self._max_chunk = max_chunk

    def victims(self, *, deferred: bool) -> list[Sequence]:
        """Return victims for each waiting sequence that lacks a slot, or, if the next one has a slot, for its missing
        blocks.

        If the queue's order depends on what its next sequence will be charged, only the next sequence counts. A fork
        can use its own shard only; if it gets nothing there, sequences that come after it may have other shards.
        deferred: whether deferred sequences count.
        """
        state, queue = self._state, self._state.queue
        first = queue.peek(deferred=deferred)
        if first is None or not state.running or first.rank > state.running[-1].rank:
            return []
        shards, victims, heads = [*range(len(state.kv_shards))], [], []
        entering, slots = 0, state.table.num_free if len(shards) > 1 else 0
        while shards and (head := queue.peek_for(shards, deferred=deferred)) is not None:
            if head.rank > state.running[-1].rank:
                break
            own = [head.kv.shard] if head.is_waiting_fork else shards
            open_ = [shard for shard in own if state.table.free_in(shard)]
            if open_ and self._may_enter(head, open_):
                entering += 1
                if entering > slots or not (heads or queue.in_rank_order):
                    break
                queue.take(head)  # forks that come after it may have another shard
                heads.append(head)
                continue
            if open_ and victims:
                break
            found = self._for_blocks(head, own, open_) if open_ else self._for_slot(head, own, victims)
            victims += found
            if not found and head.is_waiting_fork:
                shards.remove(head.kv.shard)
                continue
            if not found or open_ or not (heads or queue.in_rank_order):
                break
            queue.take(head)
            heads.append(head)
        for head in heads:
            queue.push(head)
        return victims

    def _may_enter(self, head: Sequence, open_: abc.Iterable[int]) -> bool:
        """Return whether a shard with a free slot may have the blocks."""
        return any(self._failures.missing(head, shard) is None for shard in open_)

    def _for_slot(self, head: Sequence, shards: abc.Iterable[int], others: abc.Container[Sequence]) -> list[Sequence]:
        """Victims for a sequence of which each shard lacks a slot. others: victims already."""
        found = []
        for shard in shards:
            running = [sequence for sequence in self._state.running_in(shard) if sequence not in others]
            found.append(victims_for(head, self._missing(head, shard), running))
        return _fewest(found)

    def _for_blocks(self, head: Sequence, shards: abc.Iterable[int], open_: abc.Container[int]) -> list[Sequence]:
        """Victims for a sequence that lacks blocks in each shard with a free slot, `open_`."""
        found = []
        for shard in shards:
            missing = self._failures.missing(head, shard) if shard in open_ else self._missing(head, shard)
            if shard in open_ and self._state.forks.drop_last_reference(head, shard=shard):
                return []
            found.append(victims_for(head, missing or 0, self._state.running_in(shard)))
        return _fewest(found)

    def _missing(self, head: Sequence, shard: int) -> int:
        """Blocks that a sequence would lack in a shard where it has not tried, since that has no slot: without a cached
        prefix. With one shard there is no other to choose, and the next plan asks for blocks."""
        if len(self._state.kv_shards) == 1 or head.is_waiting_fork:
            return 0
        kv, tokens = self._state.kv_shards[shard], min(head.num_known, self._max_chunk)
        return kv.missing(head.kv, tokens, reserve=self._watermark)


def outranks(head: Sequence, running: Sequence) -> bool:
    """Return whether a waiting sequence may take what a running one has.

    Among tenants of one priority the rounds decide who is admitted: earlier arrival gives no claim to what another
    tenant was given, and tenants would take the same slots from each other for ever.
    """
    return head.rank < running.rank and (head.priority != running.priority or head.tenant == running.tenant)


def victims_for(head: Sequence, missing: int, running: abc.Sequence[Sequence]) -> list[Sequence]:
    """Return the fewest victims that hold `missing` blocks in each group, the last in rank first: at least one; none if
    all together hold too few.

    Blocks that a victim shares are counted as if they came free: if they do not, the next plan asks again.
    """
    victims: list[Sequence] = []
    lacks = [missing] * len(head.kv.blocks)
    for sequence in reversed(running):
        if sequence.rank < head.rank:
            break
        if not outranks(head, sequence):
            continue
        victims.append(sequence)
        lacks = [lack - sum(map(bool, blocks)) for lack, blocks in zip(lacks, sequence.kv.blocks, strict=True)]
        if max(lacks) <= 0:
            return victims
    return []


def _fewest(found: abc.Iterable[list[Sequence]]) -> list[Sequence]:
    """Return the shortest list of victims, one list a shard; among equally short ones the list whose best is last in
    rank."""
    return max(filter(None, found), key=lambda victims: (-len(victims), victims[-1].rank), default=[])
