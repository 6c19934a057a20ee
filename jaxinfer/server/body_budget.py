"""BodyBudget: the memory of bodies that are still coming, or wait for a worker.

Beyond it the body that has been coming for longest is refused. Back-pressure would be no way out: unfinished bodies
keep their memory until they are complete, so senders who stall would make everybody behind them wait. Refusing the
newest would let them lock everybody out. The oldest is one that stalls, or has had the most time.
"""

import asyncio
from collections.abc import Awaitable, Callable

from jaxinfer.serving.errors import ErrorKind, RequestError

RETRY_SECONDS = 2

_TURNS = 4
"""Long bodies that are read in one round of the event loop."""


class BodyBudget:
    """At most `limit` bytes of bodies in this process; at most half of them in bodies that wait for a worker.

    turns: what the next part of a long body is read within.
    """

    def __init__(self, limit: int):
        self._limit = limit
        self._waiting = 0
        self._coming: dict[BodyShare, None] = {}  # in the order they began
        self.used = 0
        self.turns = asyncio.Semaphore(_TURNS)

    def begin(self) -> "BodyShare":
        """The share of a body that begins to come."""
        share = BodyShare(self)
        self._coming[share] = None
        return share

    def grow(self, share: "BodyShare", size: int) -> None:
        """More of a body has come. Raises RequestError where it is refused."""
        share.size += size
        self.used += size
        while self.used > self._limit and not share.refused:
            next(iter(self._coming)).refuse()
        share.check()

    def wait(self, share: "BodyShare") -> None:
        """A body is complete, and waits for a worker. Raises RequestError where too many do."""
        if self._waiting + share.size > self._limit // 2:
            share.refuse()
        share.check()
        del self._coming[share]
        self._waiting += share.size
        share.waits = True

    def end(self, share: "BodyShare") -> None:
        """A body's memory is free again. Without effect on one that has ended."""
        self._coming.pop(share, None)
        self.used -= share.size
        self._waiting -= share.size if share.waits else 0
        share.size = 0


class BodyShare:
    """What one body has of the budget. refused: it was taken away."""

    def __init__(self, budget: BodyBudget):
        self.size = 0
        self.waits = False
        self.refused = False
        self._budget = budget
        self._reading: asyncio.Timeout | None = None

    def grow(self, size: int) -> None:
        """More of the body has come. Raises RequestError where it is refused."""
        self._budget.grow(self, size)

    def wait(self) -> None:
        """The body is complete, and waits for a worker. Raises RequestError where too many do."""
        self._budget.wait(self)

    def end(self) -> None:
        """The body's memory is free again. Without effect where it was."""
        self._budget.end(self)

    async def watched(self, read: Callable[[], Awaitable[bytes]], seconds: float) -> bytes:
        """The next bytes. Raises TimeoutError where none come in time, RequestError where the body is refused."""
        self.check()
        try:
            async with asyncio.timeout(seconds) as self._reading:
                return await read()
        except TimeoutError:
            self.check()
            raise
        finally:
            self._reading = None

    def refuse(self) -> None:
        """Takes the share away; whoever reads the body learns it at once."""
        self.refused = True
        self._budget.end(self)
        if self._reading is not None and not self._reading.expired():
            self._reading.reschedule(0.0)

    def check(self) -> None:
        """Raises RequestError where the body was refused."""
        if self.refused:
            message = f"there is no memory for more bodies that are still coming; try again in {RETRY_SECONDS} s"
            raise RequestError(message, kind=ErrorKind.UNAVAILABLE, code="too_many_bodies", retry_after=RETRY_SECONDS)
