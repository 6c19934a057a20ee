"""RankOrder: sequences in the order of their ranks, with a second line for those that others may pass."""

import heapq

from jaxinfer.engine.sequence import Sequence, Status

Heap = list[tuple[tuple[int, ...], Sequence]]


class RankOrder:
    """Adding, taking and removing cost the logarithm of its length."""

    def __init__(self) -> None:
        self._heap: Heap = []
        self._deferred: Heap = []
        self._length = 0

    @property
    def in_rank_order(self) -> bool:
        """True: there is no other order."""
        return True

    def push(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (sequence.rank, sequence))
        self._length += 1

    def peek(self, *, deferred: bool = True) -> Sequence | None:
        """The sequence of the lowest rank. deferred: whether a deferred one may be next."""
        first = head_of(self._heap)
        second = head_of(self._deferred) if deferred else None
        if first is None or (second is not None and second[0] < first[0]):
            first = second
        return None if first is None else first[1]

    def take(self, sequence: Sequence) -> None:
        """Takes out what `peek` has just returned."""
        heap = self._heap if self._heap and self._heap[0][1] is sequence else self._deferred
        heapq.heappop(heap)
        self._shrink()

    def defer(self, sequence: Sequence) -> None:
        """Lets others pass the sequence that `peek` has just returned."""
        if self._heap and self._heap[0][1] is sequence:
            heapq.heappush(self._deferred, heapq.heappop(self._heap))

    def remove(self, sequence: Sequence) -> None:
        """Takes out a sequence whose status is no longer WAITING."""
        self._shrink()

    def _shrink(self) -> None:
        self._length -= 1
        # Without this, sequences that come and are aborted while one waits in front would pile up. There may be a line
        # for each of many tenants, so an empty one keeps none.
        if len(self._heap) + len(self._deferred) > 2 * self._length:
            self._heap, self._deferred = without_gone(self._heap), without_gone(self._deferred)

    def charge(self, sequence: Sequence, start: int) -> None:
        """Who comes next does not depend on what was served."""

    def settle(self, sequence: Sequence, computed: int) -> None:
        """Who comes next does not depend on what was served."""


def head_of(heap: Heap) -> tuple[tuple[int, ...], Sequence] | None:
    """The first entry whose sequence waits."""
    # Removed sequences are skipped when they surface: to search for them would cost the queue's length.
    while heap and heap[0][1].status is not Status.WAITING:
        heapq.heappop(heap)
    return heap[0] if heap else None


def without_gone(heap: Heap) -> Heap:
    """A heap of those entries whose sequences wait."""
    left = [entry for entry in heap if entry[1].status is Status.WAITING]
    heapq.heapify(left)
    return left
