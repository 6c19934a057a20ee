"""GrowingSizes: the sizes whose programs are there, which become more while an engine serves."""

import gc
import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from jaxinfer.engine.step.buckets import bucket_of, first_buckets, make_buckets, missing_sizes, with_size
from jaxinfer.engine.step.plan import StepKind
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.runner.platform.compiles import compile_counter
from jaxinfer.runner.programs.compiled import Programs, no_collections

log = logging.getLogger(__name__)

_MOST_SECONDS = 10.0
_SWITCH_SECONDS = 0.0005
_TIMED = {"rows": StepKind.DECODE, "tokens": StepKind.MIXED}
"""The forward passes of each family of sizes that has any."""


class GrowingSizes:
    """Sizes that steps may be packed for. buckets: those whose programs are there, or all, if programs are made when
    they are first needed. compiled: programs that were compiled for more sizes.

    A step is padded to the next size that is there. A size is there once every program of every stage is.
    """

    def __init__(
        self, programs: Sequence[Programs], shapes: EngineShapes, step_seconds: dict[tuple[StepKind, int], float]
    ):
        """programs: of each stage. step_seconds: gets an entry for each size that is added."""
        self.buckets = make_buckets(shapes)
        self.compiled = 0
        self._programs, self._shapes, self._step_seconds = programs, shapes, step_seconds
        self._stopped, self._thread = threading.Event(), threading.Thread(target=self._grow)

    def begin(self) -> None:
        """Has only sizes that are there, from now on."""
        self.buckets = first_buckets(self._shapes)
        for family, size in missing_sizes(self._shapes, self.buckets):
            larger = with_size(self.buckets, family, size)
            if all(programs.made >= set(programs.names_of(larger)) for programs in self._programs):
                self.buckets = larger

    def start(self) -> None:
        """Makes the other sizes, one after another, in a thread of its own."""
        if missing_sizes(self._shapes, self.buckets):
            self._thread.start()

    def stop(self) -> None:
        """Makes no more. Waits for the program that is being compiled, for a short time."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_MOST_SECONDS)

    def _grow(self) -> None:
        start, missing = time.perf_counter(), missing_sizes(self._shapes, self.buckets)
        for family, size in missing:
            if self._stopped.is_set() or not threading.main_thread().is_alive():
                return
            self.add(family, size)
        if not (left := missing_sizes(self._shapes, self.buckets)):
            log.info("%d more sizes are there, %.0f s after readiness", len(missing), time.perf_counter() - start)
        else:
            log.warning("%d of %d more sizes are missing", len(left), len(missing))

    def add(self, family: str, size: int) -> None:
        """Makes the programs of a size, and has it. Where one cannot be made, steps stay padded to a larger size."""
        larger, before = with_size(self.buckets, family, size), compile_counter.here
        try:
            for programs in self._programs:
                for name in programs.names_of(larger):
                    if name not in programs.made:
                        with _beside_steps():
                            programs.add(name)
        except Exception as error:  # whatever it is, the engine serves without
            log.warning("%s %d: %s; steps are padded to a larger size", family, size, error)
            return
        finally:
            self.compiled += compile_counter.here - before
        if (kind := _TIMED.get(family)) is not None and self._step_seconds:
            next_larger = bucket_of(size, getattr(self.buckets, family))
            self._step_seconds[kind, size] = self._step_seconds[kind, next_larger]
        self.buckets = larger


@contextmanager
def _beside_steps() -> Iterator[None]:
    """Leave the interpreter's lock to steps: tracing gives it back ten times as often as Python would have it, collects
    no garbage meanwhile, and leaves what it made out of later collections, each of which would take a tenth of a second
    (DECISIONS.md has what that is worth)."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        with no_collections():
            yield
            gc.freeze()
    finally:
        sys.setswitchinterval(interval)
