"""Choice of each KV group's attention backend: those that the device can run are timed on the group's own shapes."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from jaxinfer_kernels import KVLayout, unavailable

from jaxinfer.config import AttentionBackend
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.platform.autotune_cache import shapes_digest
from jaxinfer.runner.platform.values import platform_of
from jaxinfer.runner.step.group_attention import group_size, with_backend
from jaxinfer.runner.tuning.attention_check import check_attention
from jaxinfer.runner.tuning.attention_timing import time_attention, trial_kind
from jaxinfer.runner.tuning.backend_choice import remembered_choice
from jaxinfer.runner.tuning.kernel_backends import candidates, check_asked, interpreted, obstacle

log = logging.getLogger(__name__)


def choose_attention(
    model: LoadedModel, shapes: EngineShapes, asked: AttentionBackend, cache: Path | None
) -> LoadedModel:
    """The model with a backend to run for each KV group. cache: where choices are remembered.

    Raises ParameterError for one that cannot run on the model's devices.
    """
    check_asked(asked, model.mesh)
    if interpreted(asked, model.mesh):
        log.warning("attention backend %s runs in an interpreter on a CPU: for tests, and far slower than xla", asked)
    if asked == "auto" and platform_of(model.mesh) == "cpu" and (reason := unavailable("native")):
        log.warning("XLA's kernels run, which are slower on a CPU: %s", reason)
    able = candidates(model.mesh, model.dtype)
    groups = range(len(model.backends))
    if asked != "auto":
        return _with_names(model, [asked for _ in groups])
    if len(able) == 1:
        return _with_names(model, [able[0] for _ in groups])
    names: dict[tuple[object, ...], str] = {}
    for group in groups:
        like = _alike(model, group)
        if like not in names:
            key = shapes_digest(model, shapes, *able, str(group))
            file = cache / f"attention-{key}.json" if cache else None
            names[like] = remembered_choice("attention", file, able, partial(_measured, model, shapes, group))
    return _with_names(model, [names[_alike(model, group)] for group in groups])


def _alike(model: LoadedModel, group: int) -> tuple[object, ...]:
    """Return all that a group's choice depends on: groups that are alike share one."""
    kind, layers = model.config.kv_groups[group]
    return kind, len(layers), group_size(model, group), trial_kind(model, group).scoring


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
