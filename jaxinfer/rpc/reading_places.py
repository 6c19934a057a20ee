"""ReadingPlaces: how many messages may be coming at once.

gRPC tells neither how long a message will be nor how much of it has come, and keeps what has come of one that is being
read. So each may take as much memory as the longest, and their number is bounded. Who waits for a place takes next to
nothing: gRPC reads nothing beyond a stream's first window.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from jaxinfer.serving.errors import ErrorKind, RequestError

RETRY_SECONDS = 2
GRACE_SECONDS = 1.0
"""Seconds that a message may take to come though others wait."""

_MOST_WAITING = 1024


class ReadingPlaces:
    """At most `count` messages that are coming; each within `seconds`, its wait for a place included.

    Where others wait, the one that has been coming for longest is refused once it has had its grace: it is one that
    stalls, or has had the most time. Who came last is next: it waits the least however many stall before it.
    """

    def __init__(self, count: int, seconds: float):
        self._count = count
        self._seconds = seconds
        self._taken = 0
        self._reading: dict[_Reading, None] = {}  # in the order they began
        self._waiting: dict[asyncio.Future[None], None] = {}  # in the order they came
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Holds a place. Raises RequestError where the message does not come in time, or others need the place."""
        reading = _Reading()
        try:
            async with asyncio.timeout(self._seconds) as reading.scope:
                await self._take(reading)
                try:
                    yield
                finally:
                    self._give_back(reading)
        except TimeoutError:
            if reading.refused:
                raise _crowded() from None
            message = f"the message did not come within {self._seconds:g} s"
            raise RequestError(message, kind=ErrorKind.TIMED_OUT, code="body_timeout") from None

    async def _take(self, reading: "_Reading") -> None:
        if self._taken < self._count:
            self._taken += 1
        else:
            await self._wait()
        reading.began = asyncio.get_running_loop().time()
        self._reading[reading] = None
        if self._waiting:
            self._make_room()

    async def _wait(self) -> None:
        """Until a place is handed over."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[mine] = None
        if len(self._waiting) > _MOST_WAITING:
            first = next(iter(self._waiting))
            del self._waiting[first]
            if not first.done():
                first.set_exception(_crowded())
        self._make_room()
        try:
            await mine
        except asyncio.CancelledError:
            self._waiting.pop(mine, None)
            if mine.done() and not mine.cancelled() and mine.exception() is None:
                self._hand_over()  # it had come in the same moment
            raise

    def _give_back(self, reading: "_Reading") -> None:
        del self._reading[reading]
        self._hand_over()

    def _hand_over(self) -> None:
        """Gives a place to who came last."""
        while self._waiting:
            last, _ = self._waiting.popitem()
            if not last.done():  # cancelled, and about to notice
                last.set_result(None)
                return
        self._taken -= 1

    def _make_room(self) -> None:
        """Refuses those that have had their grace, as many as wait; looks again when the next has had it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        coming = [reading for reading in self._reading if not reading.leaving]
        leaving = len(self._reading) - len(coming)
        for reading in coming[: max(0, len(self._waiting) - leaving)]:
            due = reading.began + GRACE_SECONDS
            if due > loop.time():
                self._timer = loop.call_at(due, self._make_room)
                return
            reading.refuse()


class _Reading:
    """One message that is coming. refused: others needed its place."""

    def __init__(self) -> None:
        self.began = 0.0
        self.refused = False
        self.scope: asyncio.Timeout | None = None

    @property
    def leaving(self) -> bool:
        """True where its place is about to come back."""
        return self.refused or (self.scope is not None and self.scope.expired())

    def refuse(self) -> None:
        """Ends it. It must not be leaving."""
        self.refused = True
        if self.scope is not None:
            self.scope.reschedule(0.0)


def _crowded() -> RequestError:
    message = f"there is no memory for more messages that are still coming; try again in {RETRY_SECONDS} s"
    return RequestError(message, kind=ErrorKind.BUSY, code="too_many_bodies", retry_after=RETRY_SECONDS)
