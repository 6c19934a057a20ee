"""WorkerPlaces: which job a free worker does next, shared by API key."""

import asyncio
from collections import Counter

from jaxinfer.fair_queue import FairQueue
from jaxinfer.serving.errors import ErrorKind, RequestError


class WorkerPlaces:
    """`count` places. Jobs that find none wait, at most `seconds`; keys get equal shares of what waits, by size.

    shared: requests come by several keys. Then no key takes the last place, so that another one's job waits for a long
    job only if yet others do too.
    """

    def __init__(self, count: int, seconds: float, *, shared: bool):
        self._free = count
        self._most = max(1, count - 1) if shared else count
        self._seconds = seconds
        self._taken: Counter[str] = Counter()
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()

    async def take(self, key: str, size: int) -> None:
        """Wait for a place, which `give_back` frees. size: what the job costs, in bytes.

        Raises RequestError if none is free in time.
        """
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.push(key, size, mine)
        self._hand_out()
        try:
            async with asyncio.timeout(self._seconds):
                await mine
        except BaseException as error:
            self._give_up(key, mine)
            if isinstance(error, TimeoutError):
                raise self._late() from None
            raise

    def give_back(self, key: str) -> None:
        """Free a place of a key's."""
        self._taken[key] -= 1
        self._free += 1
        self._hand_out()

    def _give_up(self, key: str, mine: asyncio.Future[None]) -> None:
        if mine.done() and not mine.cancelled():  # the place came in the same moment
            self.give_back(key)
        else:
            self._waiting.discard(key, mine)

    def _may_start(self, key: str) -> bool:
        return self._taken[key] < self._most

    def _hand_out(self) -> None:
        while self._free and (found := self._waiting.pop(self._may_start)) is not None:
            key, future = found
            if future.done():  # cancelled, and about to notice
                continue
            self._free -= 1
            self._taken[key] += 1
            future.set_result(None)

    def _late(self) -> RequestError:
        seconds = round(self._seconds)
        message = f"the body waited {seconds} s for one of the processes that read large bodies; try again later"
        return RequestError(message, kind=ErrorKind.UNAVAILABLE, code="too_many_bodies", retry_after=seconds)
