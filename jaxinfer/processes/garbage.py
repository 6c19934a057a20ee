"""Garbage collections that do not hold up streams: a full one takes as long as there are objects to look at."""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Callable

LONG_SECONDS = 0.01
_LOOK_SECONDS = 10.0


def forget_garbage() -> None:
    """Keeps what was made so far out of later collections: with JAX loaded each would stop all streams for 0.1 s."""
    gc.collect()
    gc.freeze()


class ShortCollections:
    """Exclude the survivors of a long full collection from the next ones, until `collect_all`.

    Otherwise thousands of open connections, or of cached blocks in an engine, would be looked at again and again while
    more come, each time for longer.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._began = 0.0
        self.left_out = False

    def __enter__(self) -> "ShortCollections":
        gc.callbacks.append(self._seen)
        return self

    def __exit__(self, *error: object) -> None:
        gc.callbacks.remove(self._seen)

    def collect_all(self) -> None:
        """Frees garbage that was left out; takes a tenth of a second or more."""
        gc.unfreeze()
        forget_garbage()
        self.left_out = False

    def _seen(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            self._began = self._clock()
        elif self._clock() - self._began > LONG_SECONDS:
            gc.freeze()
            self.left_out = True


@contextlib.asynccontextmanager
async def short_collections(is_idle: Callable[[], bool], look_seconds: float = _LOOK_SECONDS) -> AsyncIterator[None]:
    """Keeps full collections short as long as it is entered; what they left out is collected once `is_idle`."""
    with ShortCollections() as collections:
        looking = asyncio.create_task(_collect_when_idle(collections, is_idle, look_seconds))
        try:
            yield
        finally:
            looking.cancel()


async def _collect_when_idle(collections: ShortCollections, is_idle: Callable[[], bool], look_seconds: float) -> None:
    while True:
        await asyncio.sleep(look_seconds)
        if collections.left_out and is_idle():
            collections.collect_all()
