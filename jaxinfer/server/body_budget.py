"""BodyBudget: the memory of bodies that are still coming, or wait for a worker.

Beyond it the body that has been coming for longest is refused. Back-pressure would be no way out: unfinished bodies
keep their memory until they are complete, so senders who stall would make everybody behind them wait. Refusing the
newest would let them lock everybody out. The oldest is one that stalls, or has had the most time.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from jaxinfer.serving.errors import ErrorKind, RequestError

RETRY_SECONDS = 2

_TURNS = 4
"""Long bodies that are read in one round of the event loop."""


class BodyBudget:
    """At most `limit` bytes of bodies in this process; at most half of them in bodies that wait for a worker.

    shared: of that half the bodies of an API key may hold as much as they leave free, so that other keys have room.
    turns: what the next part of a long body is read within.
    """

    def __init__(self, limit: int, *, shared: bool):
        self.limit = limit
        self._shared = shared
        self.used = 0
        self.waiting: Counter[str] = Counter()  # bytes by key
        self.coming: dict[BodyShare, None] = {}  # in the order they began
        self.turns = asyncio.Semaphore(_TURNS)

    def begin(self, key: str = "") -> "BodyShare":
        """Return the share of a body that begins to come. key: whose it is, `` if the server asks for none."""
        share = BodyShare(self, key)
        self.coming[share] = None
        return share

    def may_wait(self, key: str, size: int) -> bool:
        """Return whether there is room for one more body that waits."""
        left = self.limit // 2 - self.waiting.total() - size
        return left >= (self.waiting[key] if self._shared else 0)


class BodyShare:
    """A body's share of the budget. refused: it was taken away."""

    def __init__(self, budget: BodyBudget, key: str):
        self.refused = False
        self._key = key
        self._size = 0
        self._waits = False
        self._budget = budget
        self._reading: asyncio.Timeout | None = None

    def grow(self, size: int) -> None:
        """More of the body has come. Raises RequestError where it is refused."""
        self._size += size
        self._budget.used += size
        while self._budget.used > self._budget.limit and not self.refused:
            next(iter(self._budget.coming)).refuse()
        self.check()

    def wait(self) -> None:
        """The body is complete, and waits for a worker. Raises RequestError where too many do."""
        if not self._budget.may_wait(self._key, self._size):
            self.refuse()
        self.check()
        del self._budget.coming[self]
        self._budget.waiting[self._key] += self._size
        self._waits = True

    def end(self) -> None:
        """The body's memory is free again. Without effect where it was."""
        self._budget.coming.pop(self, None)
        self._budget.used -= self._size
        self._budget.waiting[self._key] -= self._size if self._waits else 0
        self._size = 0

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
        self.end()
        if self._reading is not None and not self._reading.expired():
            self._reading.reschedule(0.0)

    def check(self) -> None:
        """Raises RequestError where the body was refused."""
        if self.refused:
            message = f"there is no memory for more bodies that are still coming; try again in {RETRY_SECONDS} s"
            raise RequestError(message, kind=ErrorKind.UNAVAILABLE, code="too_many_bodies", retry_after=RETRY_SECONDS)
