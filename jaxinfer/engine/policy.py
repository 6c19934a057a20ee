"""The order in which waiting requests are served, and in which running ones are preempted."""

import heapq
from typing import Protocol

from jaxinfer.engine.request import Request, Status


class Policy(Protocol):
    """A total order over requests: the lowest rank is served first and preempted last."""

    def rank(self, request: Request) -> tuple[int, ...]: ...


class FirstComeFirstServed:
    """By arrival; choices of one request by their index."""

    def rank(self, request: Request) -> tuple[int, ...]:
        return (request.arrival, request.index)


class WaitingQueue:
    """Waiting requests by rank. Adding, taking and removing cost the logarithm of its length."""

    def __init__(self, policy: Policy):
        self._policy = policy
        self._heap: list[tuple[tuple[int, ...], Request]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def push(self, request: Request) -> None:
        heapq.heappush(self._heap, (self._policy.rank(request), request))
        self._length += 1

    def peek(self) -> Request | None:
        """The next request, which stays in the queue."""
        # Removed requests are skipped when they surface: to search for them would cost the queue's length.
        while self._heap and self._heap[0][1].status is not Status.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Request:
        request = self.peek()
        if request is None:
            raise RuntimeError("nothing is waiting")
        heapq.heappop(self._heap)
        self._length -= 1
        return request

    def remove(self, request: Request) -> None:
        """Takes out a request whose status is no longer WAITING."""
        self._length -= 1
        # Without this, requests that come and are aborted while one waits in front would pile up.
        if len(self._heap) > 2 * self._length + 64:
            self._heap = [entry for entry in self._heap if entry[1].status is Status.WAITING]
            heapq.heapify(self._heap)
