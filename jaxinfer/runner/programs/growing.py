"""GrowingSizes: the sizes that steps may be packed for, to which programs are added while an engine serves."""

import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from jaxinfer import heap
from jaxinfer.engine.step.buckets import bucket_of, first_buckets, make_buckets, missing_sizes, with_size
from jaxinfer.engine.step.plan import StepKind
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.runner.platform.compiles import compile_counter
from jaxinfer.runner.platform.mappings import check_mappings
from jaxinfer.runner.programs.compiled import Programs

log = logging.getLogger(__name__)

_STOP_SECONDS = 3.0
"""Less than a process that ends is given by others."""
_SWITCH_SECONDS = 0.0005
_TIMED = {"rows": StepKind.DECODE, "tokens": StepKind.MIXED}
"""The forward passes of each family of sizes that has any."""
_tracing = threading.Lock()


class GrowingSizes:
    """Sizes that steps may be packed for. buckets: those whose programs are there, or all, if programs are made when
    they are first needed.

    A step is padded to the next size that is there. A size is there once every program of every stage is.
    """

    def __init__(
        self, programs: Sequence[Programs], shapes: EngineShapes, step_seconds: dict[tuple[StepKind, int], float]
    ):
        """programs: of each stage. step_seconds: gets an entry for each size that is added."""
        self.buckets = make_buckets(shapes)
        self._programs, self._shapes, self._step_seconds = programs, shapes, step_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._grow, name="jaxinfer-programs")

    def begin(self) -> None:
        """Restrict the sizes to those whose programs are there."""
        self.buckets = first_buckets(self._shapes)
        for family, size in missing_sizes(self._shapes, self.buckets):
            larger = with_size(self.buckets, family, size)
            if all(programs.made >= set(programs.names_of(larger)) for programs in self._programs):
                self.buckets = larger

    def start(self) -> None:
        """Begin to add the other sizes, one after another, in a thread of its own."""
        if missing_sizes(self._shapes, self.buckets):
            self._thread.start()

    def stop(self) -> None:
        """Add no more. Waits a short time for the program that is being compiled."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def _grow(self) -> None:
        start, missing = time.perf_counter(), missing_sizes(self._shapes, self.buckets)
        for family, size in missing:
            if self._is_over:
                return
            self.add(family, size)
        heap.release()
        if left := missing_sizes(self._shapes, self.buckets):
            log.warning("%d of %d more sizes are missing", len(left), len(missing))
        else:
            log.info("%d more sizes are there, %.0f s after readiness", len(missing), time.perf_counter() - start)

    @property
    def _is_over(self) -> bool:
        return self._stopped.is_set() or not threading.main_thread().is_alive()

    def add(self, family: str, size: int) -> None:
        """Make the programs of a size, and allow it. If one cannot be made, steps stay padded to a larger size."""
        larger = with_size(self.buckets, family, size)
        try:
            for programs in self._programs:
                for name in programs.names_of(larger):
                    if self._is_over:
                        return
                    if name not in programs.made:
                        _add(programs, name)
        except Exception as error:  # whatever it is, the engine serves without
            log.warning("%s %d: %s; steps are padded to a larger size", family, size, error)
            return
        if (kind := _TIMED.get(family)) is not None and self._step_seconds:
            next_larger = bucket_of(size, getattr(self.buckets, family))
            self._step_seconds[kind, size] = self._step_seconds[kind, next_larger]
        self.buckets = larger


def _add(programs: Programs, name: tuple[str, int]) -> None:
    """Make a program beside steps. Both need the interpreter's lock: it is handed over ten times as often as Python
    would (DECISIONS.md has what that is worth)."""
    check_mappings()
    with _frequent_switches(), compile_counter.apart():
        programs.add(name)


@contextmanager
def _frequent_switches() -> Iterator[None]:
    """The interval is the process's; of several engines one traces at a time."""
    with _tracing:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        try:
            yield
        finally:
            sys.setswitchinterval(interval)
