"""ShareHeap: shares in the order of their places."""

import heapq
from typing import Generic, Protocol, TypeVar

Place = tuple[int, int, int, tuple[int, ...]]
"""Sort key of a share: 1 if its next sequence must wait for a round; the round, the turn, and the sequence's rank."""


class HeapEntry(Protocol):
    """A share, or all shares of a priority."""

    def place(self, *, deferred: bool) -> Place | None:
        """Its place among its like, or None where it has no sequence that could be next."""
        ...


T = TypeVar("T", bound=HeapEntry)


class ShareHeap(Generic[T]):
    """A change costs the logarithm of the number of shares when `first` is asked for next.

    deferred: whether a deferred sequence may be next.
    """

    def __init__(self, *, deferred: bool):
        self._deferred = deferred
        self._heap: list[tuple[Place, int, T]] = []
        self._places: dict[T, Place] = {}
        self._changed: set[T] = set()

    def update(self, share: T) -> None:
        """Must be called when the place of a share may have changed."""
        self._changed.add(share)

    def discard(self, share: T) -> None:
        """Takes out a share that may come back."""
        self._changed.discard(share)
        self._places.pop(share, None)

    def first(self) -> T | None:
        """The share whose sequence is next."""
        for share in self._changed:
            self._place(share)
        self._changed.clear()
        # Entries that are out of date are skipped when they surface: to search for them would cost the heap's length.
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        if len(self._heap) > 2 * len(self._places) + 64:
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapq.heapify(self._heap)
        return self._heap[0][-1] if self._heap else None

    def _place(self, share: T) -> None:
        place = share.place(deferred=self._deferred)
        if place is None:
            self._places.pop(share, None)
        elif place != self._places.get(share):
            self._places[share] = place
            heapq.heappush(self._heap, (place, id(share), share))

    def _is_current(self, entry: tuple[Place, int, T]) -> bool:
        # By identity: an entry that is out of date may have the place that the share has again.
        place, _, share = entry
        return self._places.get(share) is place
