"""Chooses the fastest of several backends by timing them, and remembers the choice."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxinfer.runner.platform.autotune_cache import read_note, write_note

log = logging.getLogger(__name__)

_NO_MEMORY = "RESOURCE_EXHAUSTED"
"""Status in errors for lack of memory. Another start may have more of it free, and choose another backend."""


class Timing(NamedTuple):
    """One backend: seconds in a decode step and in a prefill, of all layers that are asked about, or why there are
    none."""

    backend: str
    decode: float = 0.0
    prefill: float = 0.0
    error: str = ""

    @property
    def total(self) -> float:
        """Seconds of a decode step and a prefill together, by which backends are compared."""
        return self.decode + self.prefill


def remembered_choice(
    what: str, file: Path | None, candidates: Sequence[str], measure: Callable[[str], tuple[float, float]]
) -> str:
    """The fastest of `candidates`, from the file or measured now; a choice that was measured is written to the file.

    what: that a backend is chosen for, as logs and errors call it. measure(backend) gives seconds of decode and
    prefill, or raises. An error of JAX, or one that says that shapes do not fit, passes a backend over; any other is
    raised. A choice is not written where one was passed over for lack of memory. Raises RuntimeError where every
    backend was passed over.
    """
    known = read_note(file, "backend")
    if known in candidates:
        log.info("%s backend %s, as measured at an earlier start", what, known)
        return known
    timings = [_timed(what, name, measure) for name in candidates]
    log.info("%s backends on the model's shapes, all layers that are alike:\n%s", what, table(timings))
    able = [timing for timing in timings if not timing.error]
    if not able:
        raise RuntimeError(f"no {what} backend runs: " + "; ".join(f"{t.backend}: {t.error}" for t in timings))
    best = min(able, key=lambda timing: timing.total).backend
    if not any(_NO_MEMORY in timing.error for timing in timings):
        write_note(file, {"backend": best, "timings": [timing._asdict() for timing in timings]})
    return best


def table(timings: Sequence[Timing]) -> str:
    """A line a backend."""
    lines = [f"{'backend':12} {'decode':>10} {'prefill':>10}"]
    for timing in timings:
        times = f"{1e6 * timing.decode:7.0f} µs {1e6 * timing.prefill:7.0f} µs"
        lines.append(f"{timing.backend:12} " + (f"passed over: {timing.error}" if timing.error else times))
    return "\n".join(lines)


def _timed(what: str, name: str, measure: Callable[[str], tuple[float, float]]) -> Timing:
    try:
        return Timing(name, *measure(name))
    except Exception as error:
        if not _passes_over(error):
            raise
        log.warning("%s backend %s is passed over: %s", what, name, error)
        return Timing(name, error=str(error).splitlines()[0] if str(error) else type(error).__name__)


def _passes_over(error: Exception) -> bool:
    """Mosaic's errors (MosaicError, LoweringException) are public nowhere: they are known by where they come from."""
    of_jax = type(error).__module__.partition(".")[0] in ("jax", "jaxlib")
    return of_jax or isinstance(error, (NotImplementedError, ValueError, TypeError))
