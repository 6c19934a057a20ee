"""Where a step's time goes, by kernel: the profiler's record of decode and prefill steps, summed by name."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.device.context import Context
from benchmarks.device.idle import device_events
from benchmarks.device.rig import Rig, rig_runner, rig_shapes
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models.loaded import random_model
from jaxinfer.runner.platform.values import default_block_size, use_compile_cache
from jaxinfer.runner.platform.xla_options import reserve_memory

_STEPS = 8
_MOST_NAMES = 30


def measure(context: Context) -> None:
    """options: size (`small` or `large`)."""
    form = context.form
    reserve_memory(0.9)
    use_compile_cache(str(context.work / "xla"))
    config = parse_config(dict(getattr(form, context.options["size"])))
    rows, tokens = max(form.rows), max(count * each for count, each in form.prefills)
    length = max(form.context + _STEPS + 2, max(each for _, each in form.prefills) + 1)
    shapes = rig_shapes(config, rows=rows, tokens=tokens, length=length, block_size=default_block_size())
    rig = Rig(rig_runner(random_model(config, dtype=jnp.dtype(form.dtype)), shapes, context.work))
    rig.compile(form.rows, form.prefills)
    profiles: list[dict[str, Any]] = []

    def add(kind: str, count: int, each: int, run: Callable[[], Any]) -> None:
        run()
        profiles.append({"kind": kind, "rows": count, "tokens_a_row": each, "kernels": _traced(run)})
        context.save(profiles=profiles)

    for count in form.rows:
        add("decode", count, 1, lambda count=count: rig.decode_seconds(count, form.context, _STEPS, 0))
    for count, each in form.prefills:
        add("prefill", count, each, lambda count=count, each=each: rig.prefill_seconds(count, each, _STEPS, 0))


def _traced(run: Callable[[], Any]) -> list[dict[str, Any]]:
    """What ran on the device, by name, the longest first; empty where the profiler shows no device, as on a CPU."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level, options.host_tracer_level = 0, 0
    with TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            run()
        files = list(Path(folder).rglob("*.xplane.pb"))
        events = device_events(jax.profiler.ProfileData.from_file(str(files[0]))) if files else []
    return by_name(events)


def by_name(events: list[Any]) -> list[dict[str, Any]]:
    """Sum events by name: how many a step, and microseconds a step. The first run of a step, which admits, counts."""
    counts, spent = defaultdict[str, int](int), defaultdict[str, float](float)
    for event in events:
        counts[event.name] += 1
        spent[event.name] += event.duration_ns / 1e3
    steps = _STEPS + 1
    longest = sorted(spent, key=spent.__getitem__, reverse=True)[:_MOST_NAMES]
    return [
        {"name": name, "a_step": round(counts[name] / steps, 2), "us_a_step": round(spent[name] / steps, 1)}
        for name in longest
    ]
