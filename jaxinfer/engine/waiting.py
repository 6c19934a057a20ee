"""WaitingQueue: requests without a slot, by rank."""

import heapq

from jaxinfer.engine.request import Request, Status

_Heap = list[tuple[tuple[int, ...], Request]]


class WaitingQueue:
    """Adding, taking and removing cost the logarithm of its length.

    Long prompts that wait for others of their kind may be set aside, so that short ones pass them; they keep
    their rank. Those that are to be computed alone come before all others.
    """

    def __init__(self) -> None:
        self._heap: _Heap = []
        self._aside: _Heap = []
        self._alone: _Heap = []
        self._length = 0
        self._choices: dict[str, int] = {}

    def __len__(self) -> int:
        """Choices that wait."""
        return self._length

    @property
    def num_requests(self) -> int:
        """Requests of which at least one choice waits."""
        return len(self._choices)

    @property
    def num_aside(self) -> int:
        """Requests that were set aside. Safe in any thread."""
        return len({entry[1].request_id for entry in list(self._aside) if entry[1].status is Status.WAITING})

    @property
    def has_alone(self) -> bool:
        """True where the next request is to be computed alone."""
        return _head(self._alone) is not None

    def join_alone(self) -> None:
        """Nobody that waits is to be computed alone any more."""
        for entry in self._alone:
            entry[1].alone = False
            heapq.heappush(self._heap, entry)
        self._alone = []

    def push(self, request: Request) -> None:
        heapq.heappush(self._alone if request.alone else self._heap, (request.rank, request))
        self._length += 1
        self._choices[request.request_id] = self._choices.get(request.request_id, 0) + 1

    def peek(self, *, aside: bool = True) -> Request | None:
        """The next request, which stays in the queue. aside: whether one that was set aside may be next."""
        first = _head(self._alone)
        if first is not None:
            return first[1]
        heads = [_head(heap) for heap in ((self._heap, self._aside) if aside else (self._heap,))]
        return min((head for head in heads if head is not None), default=(None, None))[1]

    def take(self, request: Request) -> None:
        """Takes out what `peek` has just returned."""
        heap = next(heap for heap in (self._alone, self._heap, self._aside) if heap and heap[0][1] is request)
        heapq.heappop(heap)
        self._forget(request)

    def set_aside(self, request: Request) -> None:
        """Lets others pass the request that `peek` has just returned."""
        if self._heap and self._heap[0][1] is request:
            heapq.heappush(self._aside, heapq.heappop(self._heap))

    def remove(self, request: Request) -> None:
        """Takes out a request whose status is no longer WAITING."""
        self._forget(request)
        # Without this, requests that come and are aborted while one waits in front would pile up.
        heaps = self._heap, self._aside, self._alone
        if sum(map(len, heaps)) > 2 * self._length + 64:
            self._heap, self._aside, self._alone = map(_without_gone, heaps)

    def _forget(self, request: Request) -> None:
        self._length -= 1
        left = self._choices[request.request_id] - 1
        if left:
            self._choices[request.request_id] = left
        else:
            del self._choices[request.request_id]


def _head(heap: _Heap) -> tuple[tuple[int, ...], Request] | None:
    # Removed requests are skipped when they surface: to search for them would cost the queue's length.
    while heap and heap[0][1].status is not Status.WAITING:
        heapq.heappop(heap)
    return heap[0] if heap else None


def _without_gone(heap: _Heap) -> _Heap:
    left = [entry for entry in heap if entry[1].status is Status.WAITING]
    heapq.heapify(left)
    return left
