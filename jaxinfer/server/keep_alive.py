"""KeepAlive: comment lines in streams that have been silent for a while, so that proxies do not close them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

COMMENT = b": keep-alive\n\n"


class KeepAlive:
    """Writes a comment whenever nothing was sent for `interval` seconds.

    write: takes the comment; is not called while the last write waits for a slow client. clock, sleep: of the event
    loop, in tests others.
    """

    def __init__(
        self,
        interval: float,
        write: Callable[[bytes], Awaitable[None]],
        *,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ):
        self._interval = interval
        self._write = write
        self._clock = clock or asyncio.get_running_loop().time
        self._sleep = sleep
        self._last = self._clock()
        self._writing = False

    async def send(self, data: bytes) -> None:
        """Write data of the stream."""
        self._writing = True
        try:
            await self._write(data)
        finally:
            self._writing, self._last = False, self._clock()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write comments until the block ends; with an interval of 0 none."""
        if not self._interval:
            yield
            return
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])  # a comment is not cut in the middle by what follows it
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _run(self) -> None:
        # A client that has gone is noticed by who writes the stream.
        with contextlib.suppress(ConnectionError):
            while True:
                await self._sleep(max(self._last + self._interval - self._clock(), 0.0))
                if self._clock() - self._last < self._interval:
                    continue
                if not self._writing:
                    await self._write(COMMENT)
                self._last = self._clock()
