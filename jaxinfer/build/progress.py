"""Progress of an engine under construction, and the time of its parts."""

import time
from typing import NamedTuple, Protocol


class BuildProgress(Protocol):
    """Told how far an engine under construction is."""

    def sized(self, sizes: str) -> None:
        """Receive a line on the chosen type, backend and sizes."""

    def loaded(self, done: int, total: int) -> None:
        """Bytes of weights on the device so far, and in all."""

    def compiled(self, program: str, done: int, total: int, seconds: float, cached: bool) -> None:
        """A program was made in so many seconds, `cached`: read from the cache; how many are done, and how many."""


class BuildSeconds(NamedTuple):
    """Seconds that each part of building took.

    plan: reading configuration, finding the device. fit: the attention backend and the number of blocks. tracing: the
    part of making programs that one thread does alone; compile: the rest of it, beside and after tracing.
    """

    imports: float = 0.0
    plan: float = 0.0
    load: float = 0.0
    fit: float = 0.0
    tracing: float = 0.0
    compile: float = 0.0
    warm_up: float = 0.0

    def __str__(self) -> str:
        return f"{sum(self):.2f} s: " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in self._asdict().items())


class Laps:
    """Time from the end of one part to that of the next."""

    def __init__(self) -> None:
        self._parts: dict[str, float] = {}
        self._last = time.perf_counter()

    def end(self, part: str) -> None:
        now = time.perf_counter()
        self._parts[part] = now - self._last
        self._last = now

    def seconds(self, tracing: float, programs: float) -> BuildSeconds:
        """tracing: part of the seconds of making `programs`, all of which the last part contains."""
        laps = BuildSeconds(**self._parts)
        return laps._replace(tracing=tracing, compile=programs - tracing, warm_up=laps.warm_up - programs)
