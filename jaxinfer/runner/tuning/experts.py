"""Choice of the backend for layers with experts: those that the device can run are timed on the model's own experts."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.config import AttentionBackend
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.layers.context import LayerContext
from jaxinfer.layers.dispatch import DISPATCH_FORMS
from jaxinfer.layers.stack import layer_of
from jaxinfer.model_config.mlp_kind import ExpertsKind
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.platform.autotune_cache import shapes_digest
from jaxinfer.runner.platform.values import platform_of
from jaxinfer.runner.tuning.backend_choice import remembered_choice
from jaxinfer.runner.tuning.kernel_backends import candidates, interpreted, obstacle

log = logging.getLogger(__name__)

_RUNS, _CALLS = 5, 8
_ERROR = {"float32": 1e-3}
"""Largest difference from xla's results, as a share of the largest; of other types, 2e-2."""


def choose_experts(
    model: LoadedModel, shapes: EngineShapes, asked: AttentionBackend, cache: Path | None
) -> LoadedModel:
    """The model with a backend for its experts, if it has any. asked: the attention backend. cache: where choices are
    remembered.

    Where `xla` or an interpreted kernel is asked for, it multiplies too; otherwise the fastest does, on a CPU `native`
    where it takes all of them.
    """
    if not _layers(model) or asked == "xla":
        return model
    if interpreted(asked, model.mesh):
        return replace(model, experts_backend=asked)
    able = candidates(model.mesh, model.dtype)
    if len(able) == 1:
        return replace(model, experts_backend=able[0] if _takes(model, able[0]) else "xla")
    file = cache / f"experts-{shapes_digest(model, shapes, *able)}.json" if cache else None
    chosen = remembered_choice("experts", file, able, partial(_measured, model, shapes))
    return replace(model, experts_backend=chosen)


def choose_dispatch(model: LoadedModel, shapes: EngineShapes, cache: Path | None) -> LoadedModel:
    """The model with a form of dispatch, where experts are split over the devices of a mesh: the fastest of those that
    agree. On a CPU, whose devices share its memory, rows are not exchanged."""
    shards = model.dispatch().shards
    if not _layers(model) or shards is None or not shards.expert:
        return model
    if platform_of(model.mesh) == "cpu":
        log.info("dispatch to experts: %s, since the devices of a CPU share its memory", model.dispatch_form)
        return model
    file = cache / f"dispatch-{shapes_digest(model, shapes, *DISPATCH_FORMS)}.json" if cache else None
    chosen = remembered_choice("dispatch to experts", file, DISPATCH_FORMS, partial(_measured_form, model, shapes))
    return replace(model, dispatch_form=chosen)


def _measured_form(model: LoadedModel, shapes: EngineShapes, form: str) -> tuple[float, float]:
    """Check a form of dispatch and time it: seconds of decode and prefill, as `_measured` returns them."""
    run = replace(model, dispatch_form=form)
    for layer in _layers(model):
        _check_same(run, replace(model, dispatch_form="reduce"), layer, shapes.max_num_seqs)
    return _timed_layers(run, shapes, model.experts_backend)


def check_experts(model: LoadedModel, backend: str, layer: int, rows: int) -> None:
    """One layer of random rows by a backend and by `xla`. Raises ValueError where results differ."""
    _check_same(replace(model, experts_backend=backend), replace(model, experts_backend="xla"), layer, rows)


def _check_same(one: LoadedModel, other: LoadedModel, layer: int, rows: int) -> None:
    """Raises ValueError where a layer gives other results the one way than the other."""
    x = _rows(one, rows)
    out, want = (
        np.asarray(jax.jit(_layer(model, layer, model.experts_backend))(model.weights, x), np.float32)
        for model in (one, other)
    )
    error, allowed = np.abs(out - want).max() / np.abs(want).max(), _ERROR.get(one.dtype.name, 2e-2)
    if not error <= allowed:
        known = other.dispatch_form if one.dispatch_form != other.dispatch_form else other.experts_backend
        raise ValueError(f"its results differ from {known}'s by {error:.1g} of the largest, {allowed:g} is allowed")


def time_experts(model: LoadedModel, backend: str, layer: int, rows: int) -> float:
    """Seconds of one layer's MLP over `rows` random rows: the median of a few runs, without the time of dispatch."""
    experts, x = _layer(model, layer, backend), _rows(model, rows)

    @jax.jit
    def calls(weights: tuple[jax.Array, ...], x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, _CALLS, lambda _, x: x + experts(weights, x), x)

    times = []
    for _ in range(_RUNS + 1):
        begin = time.perf_counter()
        calls(model.weights, x).block_until_ready()
        times.append((time.perf_counter() - begin) / _CALLS)
    return median(times[1:])


def _measured(model: LoadedModel, shapes: EngineShapes, backend: str) -> tuple[float, float]:
    """Seconds of a decode step's experts and of a prefill's, all layers; of layers that are alike one is timed."""
    if reason := obstacle(backend, model.mesh):
        raise NotImplementedError(reason)
    for layer in _layers(model) if backend != "xla" else ():
        check_experts(model, backend, layer, shapes.max_num_seqs)
    return _timed_layers(model, shapes, backend)


def _timed_layers(model: LoadedModel, shapes: EngineShapes, backend: str) -> tuple[float, float]:
    """Seconds of a decode step's experts and of a prefill's."""
    decode = prefill = 0.0
    for layer, count in _layers(model).items():
        decode += count * time_experts(model, backend, layer, shapes.max_num_seqs)
        prefill += count * time_experts(model, backend, layer, shapes.max_num_batched_tokens)
    return decode, prefill


def _layers(model: LoadedModel) -> dict[int, int]:
    """The first layer with each kind of experts, and how many layers have them."""
    kinds = [layer.mlp for layer in model.config.layers]
    return {kinds.index(kind): count for kind, count in Counter(kinds).items() if isinstance(kind, ExpertsKind)}


def _layer(model: LoadedModel, layer: int, backend: str) -> Callable[[tuple[jax.Array, ...], jax.Array], jax.Array]:
    """Return a function that computes a layer's experts: (weights of the model, x [T, hidden]) to [T, hidden]."""

    dispatch = replace(model, experts_backend=backend).dispatch()

    def run(weights: tuple[jax.Array, ...], x: jax.Array) -> jax.Array:
        decoder = model.build(weights)
        block, repeat = decoder.repeats.place(layer)
        experts = decoder.blocks[block].mlp
        if block >= decoder.repeats.prefix:
            # Of a number that is known, XLA would slice the layer out for any backend, which no step does.
            experts = layer_of(experts, jax.lax.optimization_barrier(jnp.int32(repeat)))
        vectors = decoder.vectors.of_layer(decoder.repeats, block, repeat)
        return experts(x, LayerContext(vectors, jnp.arange(len(x)), dispatch))[0]

    return run


def _takes(model: LoadedModel, backend: str) -> bool:
    """Return whether the backend multiplies the model's experts as they are held."""
    x = jax.ShapeDtypeStruct((1, model.config.hidden_size), model.dtype)
    try:
        for layer in _layers(model):
            jax.eval_shape(_layer(model, layer, backend), model.weights, x)
    except ValueError:
        return False
    return True


def _rows(model: LoadedModel, count: int) -> jax.Array:
    return jax.random.normal(jax.random.key(0), (count, model.config.hidden_size), jnp.float32).astype(model.dtype)
