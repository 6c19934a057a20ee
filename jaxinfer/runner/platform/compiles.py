"""CompileCounter: how many programs XLA compiled in this process, those read from the cache included."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"
_CACHE_HIT = "/jax/compilation_cache/cache_hits"


class CompileCounter:
    """Counts compilations since it was made, in whichever thread they happen, but for those that are made `apart`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._here = threading.local()
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        jax.monitoring.register_event_listener(self._listen_to_cache)

    @property
    def count(self) -> int:
        return self._count

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Do not count what this thread compiles inside."""
        self._here.apart = True
        try:
            yield
        finally:
            self._here.apart = False

    @property
    def cached_here(self) -> int:
        """Programs that this thread has read from the cache."""
        return getattr(self._here, "cached", 0)

    def _listen(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _EVENT:
            with self._lock:
                self._count += not getattr(self._here, "apart", False)

    def _listen_to_cache(self, event: str, **kwargs: str | int) -> None:
        if event == _CACHE_HIT:
            self._here.cached = self.cached_here + 1


compile_counter = CompileCounter()
"""The process's one counter: JAX keeps listeners for good."""
