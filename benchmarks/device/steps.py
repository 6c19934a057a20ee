"""Decode and prefill steps of a model with random weights, against the bytes and FLOPs that its shapes ask for."""

import time
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.device.context import Context
from benchmarks.device.counts import Work, step_work
from benchmarks.device.rig import Rig, rig_runner, rig_shapes
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import random_model
from jaxinfer.runner.platform.values import default_block_size, use_compile_cache
from jaxinfer.runner.platform.xla_options import reserve_memory


def measure(context: Context) -> None:
    """options: size (`small` or `large`), layout (`unrolled` or `stacked`), prefill (whether it is timed)."""
    form, options = context.form, context.options
    reserve_memory(0.9)
    use_compile_cache(str(context.work / "xla"))
    config = parse_config(dict(getattr(form, options["size"])))
    dtype = jnp.dtype(form.dtype)
    start = time.perf_counter()
    model = random_model(config, dtype=dtype, layout=options["layout"])
    jax.block_until_ready(model.weights)
    rows, tokens = max(form.rows), max(count * each for count, each in form.prefills)
    length = max(form.context + (form.steps + 2), max(each for _, each in form.prefills) + 1)
    shapes = rig_shapes(config, rows=rows, tokens=tokens, length=length, block_size=default_block_size())
    weights_seconds = round(time.perf_counter() - start, 2)
    runner = rig_runner(model, shapes, context.work)
    attention = [backend.name for backend in runner.stages[0].model.backends]
    context.save(weights_seconds=weights_seconds, layout=options["layout"], model=_name(config), attention=attention)
    rig, found = Rig(runner), []
    begun = time.perf_counter()
    rig.compile(form.rows, form.prefills if options["prefill"] else ())
    context.save(compile_seconds=round(time.perf_counter() - begun, 2))

    def add(kind: str, rows: int, tokens: int, work: Work, seconds: list[float], first: float) -> None:
        found.append(_row(kind, rows, tokens, work, seconds, first))
        context.save(steps=found, memory=_memory())

    for count in sorted(form.rows, reverse=True):
        begun = time.perf_counter()
        rig.decode_seconds(count, form.context, 1, 0)
        first = time.perf_counter() - begun
        work = step_work(config, dtype.itemsize, 1, count, form.context + form.steps // 2)
        add("decode", count, 1, work, rig.decode_seconds(count, form.context, form.steps, form.repeats), first)
    for count, each in form.prefills if options["prefill"] else ():
        begun = time.perf_counter()
        rig.prefill_seconds(count, each, 1, 0)
        first = time.perf_counter() - begun
        work = step_work(config, dtype.itemsize, each, count, 0)
        add("prefill", count, each, work, rig.prefill_seconds(count, each, 4, form.repeats), first)


def _row(kind: str, rows: int, tokens: int, work: Work, seconds: list[float], first: float) -> dict[str, Any]:
    middle = median(seconds)
    return {
        "kind": kind,
        "rows": rows,
        "tokens_a_row": tokens,
        "step_ms": round(1e3 * middle, 4),
        "step_ms_low_high": [round(1e3 * min(seconds), 4), round(1e3 * max(seconds), 4)],
        "tokens_per_s": round(rows * tokens / middle, 1),
        "gb_per_s": round(work.bytes / middle / 1e9, 2),
        "tflops": round(work.flops / middle / 1e12, 4),
        "bytes": work.bytes,
        "flops": work.flops,
        "first_run_s": round(first, 2),
    }


def _name(config: Any) -> str:
    return f"{config.num_layers} layers of {config.hidden_size}, {config.vocab_size} tokens"


def _memory() -> dict[str, int] | None:
    stats = jax.local_devices()[0].memory_stats()
    return (
        None if stats is None else {name: stats[name] for name in ("bytes_limit", "peak_bytes_in_use") if name in stats}
    )
