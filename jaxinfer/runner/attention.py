"""Which attention backend each KV group runs: what the device can run, timed on the group's own shapes."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

from jaxinfer_kernels import KVLayout

from jaxinfer.config import AttentionBackend
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.attention_backends import CANDIDATES, check_asked, interpreted, obstacle
from jaxinfer.runner.attention_check import check_attention
from jaxinfer.runner.attention_timing import time_attention, trial_kind
from jaxinfer.runner.autotune_cache import read_note, shapes_digest, write_note
from jaxinfer.runner.group_attention import group_size, with_backend
from jaxinfer.runner.platform import platform_of

log = logging.getLogger(__name__)

_NO_MEMORY = "RESOURCE_EXHAUSTED"
"""In errors for lack of memory. Another start may have more of it free: then the choice may be another."""


class Timing(NamedTuple):
    """One backend: seconds of a decode step's attention and of a prefill's, all layers of a KV group, or why there are
    none."""

    backend: str
    decode: float = 0.0
    prefill: float = 0.0
    error: str = ""

    @property
    def total(self) -> float:
        """What is compared."""
        return self.decode + self.prefill


def choose_attention(
    model: LoadedModel, shapes: EngineShapes, asked: AttentionBackend, cache: Path | None
) -> LoadedModel:
    """The model with a backend to run for each KV group. cache: where choices are remembered.

    Raises ParameterError for one that cannot run on the model's devices.
    """
    check_asked(asked, model.mesh)
    if interpreted(asked, model.mesh):
        log.warning("attention backend %s runs in an interpreter on a CPU: for tests, and far slower than xla", asked)
    candidates = CANDIDATES[platform_of(model.mesh)]
    groups = range(len(model.backends))
    if asked != "auto":
        return _with_names(model, [asked for _ in groups])
    if len(candidates) == 1:
        return _with_names(model, [candidates[0] for _ in groups])
    names: dict[tuple[object, ...], str] = {}
    for group in groups:
        like = _alike(model, group)
        if like not in names:
            key = shapes_digest(model, shapes, *candidates, str(group))
            file = cache / f"attention-{key}.json" if cache else None
            names[like] = remembered_choice(file, candidates, partial(_measured, model, shapes, group))
    return _with_names(model, [names[_alike(model, group)] for group in groups])


def _alike(model: LoadedModel, group: int) -> tuple[object, ...]:
    """What a group's choice depends on."""
    window, kind, layers = model.config.kv_groups[group]
    return window, kind, len(layers), group_size(model, group), trial_kind(model, group).scoring


def _measured(model: LoadedModel, shapes: EngineShapes, group: int, backend: str) -> tuple[float, float]:
    if reason := obstacle(backend, model.mesh):
        raise NotImplementedError(reason)
    model = with_backend(model, group, backend)
    if backend != "xla":
        check_attention(model, shapes, group)
    return time_attention(model, shapes, group)


def _with_names(model: LoadedModel, names: Sequence[str]) -> LoadedModel:
    """The TPU's kernel brings its layout, wherever it runs."""
    for group, name in enumerate(names):
        model = with_backend(model, group, name, KVLayout.HEADS if name == "mosaic_tpu" else None)
    return model


def remembered_choice(
    file: Path | None, candidates: Sequence[str], measure: Callable[[str], tuple[float, float]]
) -> str:
    """The fastest of `candidates`, from the file or measured now; a choice that was measured is written to the file.

    measure(backend) gives seconds of decode and prefill, or raises. An error of JAX, or one that says that shapes do
    not fit, passes a backend over; any other is raised. A choice is not written where one was passed over for lack of
    memory. Raises RuntimeError where every backend was passed over.
    """
    known = read_note(file, "backend")
    if known in candidates:
        log.info("attention backend %s, as measured at an earlier start", known)
        return known
    timings = [_timed(name, measure) for name in candidates]
    log.info("attention backends on the shapes of a KV group, all of its layers:\n%s", table(timings))
    able = [timing for timing in timings if not timing.error]
    if not able:
        raise RuntimeError("no attention backend runs: " + "; ".join(f"{t.backend}: {t.error}" for t in timings))
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


@contextmanager
def _interpreted() -> Iterator[None]:
    from jax.experimental.pallas import tpu as pltpu

    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams()):
        yield


def kernel_interpreter(model: LoadedModel) -> AbstractContextManager[None]:
    """Where programs of a TPU's kernel are traced for a CPU; elsewhere it does nothing."""
    wanted = any(interpreted(backend.name, model.mesh) for backend in model.backends)
    return _interpreted() if wanted else nullcontext()


def _timed(name: str, measure: Callable[[str], tuple[float, float]]) -> Timing:
    try:
        return Timing(name, *measure(name))
    except Exception as error:
        if not _passes_over(error):
            raise
        log.warning("attention backend %s is passed over: %s", name, error)
        return Timing(name, error=str(error).splitlines()[0] if str(error) else type(error).__name__)


def _passes_over(error: Exception) -> bool:
    """Mosaic's errors (MosaicError, LoweringException) are public nowhere: they are known by where they come from."""
    of_jax = type(error).__module__.partition(".")[0] in ("jax", "jaxlib")
    return of_jax or isinstance(error, (NotImplementedError, ValueError, TypeError))
