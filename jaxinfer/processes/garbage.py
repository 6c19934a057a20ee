"""Garbage collections that do not hold up streams: a full one takes as long as there are objects to look at."""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Callable

LONG_SECONDS = 0.01
_LOOK_SECONDS = 10.0
_FEW = 10_000
"""Objects that are looked at in a millisecond or two."""


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
        self._alive = gc.get_freeze_count()
        self.left_out = False

    @property
    def is_large(self) -> bool:
        """True once twice as much is left out as was alive when all was looked at: the rest may be garbage by now,
        such as the cycles of requests that were open during a collection."""
        return gc.get_freeze_count() > 2 * max(self._alive, _FEW)

    def __enter__(self) -> "ShortCollections":
        gc.callbacks.append(self._seen)
        return self

    def __exit__(self, *error: object) -> None:
        gc.callbacks.remove(self._seen)

    def collect_all(self) -> None:
        """Frees garbage that was left out; takes a tenth of a second or more."""
        gc.unfreeze()
        forget_garbage()
        self._alive = gc.get_freeze_count()
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
    """Keeps full collections short as long as it is entered. What they left out is collected once `is_idle`, or, on a
    server that never is, once it is large."""
    with ShortCollections() as collections:
        looking = asyncio.create_task(_collect(collections, is_idle, look_seconds))
        try:
            yield
        finally:
            looking.cancel()


async def _collect(collections: ShortCollections, is_idle: Callable[[], bool], look_seconds: float) -> None:
    while True:
        await asyncio.sleep(look_seconds)
        if collections.left_out and (is_idle() or collections.is_large):
            collections.collect_all()
