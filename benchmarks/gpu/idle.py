"""How long the device waits for the host between decode steps, one step ahead and without.

Two accounts. By time: the wall time of a step of the engine, against that of the same step where the host does
nothing but dispatch, its plans made beforehand; what is over is time in which the device had nothing to do (or the
host's work slowed it). By trace, on a GPU: the profiler's record of the device's streams; idle is the share of the
time between the first kernel and the last in which no kernel and no copy ran.
"""

import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import jax

from benchmarks.gpu.context import Context
from benchmarks.gpu.engine import start_engine
from benchmarks.gpu.rig import Rig
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.llm import LLM
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.sampling import SamplingParams

Interval = tuple[float, float]


def measure(context: Context) -> None:
    """Needs a start of the engine, which is warm after `serving`."""
    llm = start_engine(context)
    rows, steps = context.form.slots, context.form.steps
    prompt = context.form.longest // 2
    _fill(llm, rows, prompt, 8 * steps + 64)
    found = {}
    for name, ahead in (("overlap", 1), ("no_overlap", 0)):
        llm.engine.steps_ahead = ahead
        found[name] = {"engine_step_ms": _step_ms(llm, steps), "traced": _traced(llm, steps)}
    made = [len(choice.tokens) for choices in llm.engine._choices.values() for choice in choices]
    llm.engine.abort_all()
    while llm.engine.has_work():
        llm.engine.step()
    runner = llm.engine.runner
    assert isinstance(runner, JaxRunner)
    device = 1e3 * median(Rig(runner).decode_seconds(rows, int(median(made)) - 2 * steps, steps, 3))
    for each in found.values():
        each["idle_share_by_time"] = round(max(0.0, 1 - device / each["engine_step_ms"]), 4)
    context.save(rows=rows, context=int(median(made)), device_step_ms=round(device, 4), **found)
    llm.close()


def _fill(llm: LLM, rows: int, prompt: int, output: int) -> None:
    """Brings `rows` requests to where all decode."""
    params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
    top = llm.info.vocab_size - 1
    for row in range(rows):
        llm.engine.add_request(GenerateRequest(f"idle-{row}", [1 + (row + i) % top for i in range(prompt)], params))
    while len(llm.engine.step()) < rows:
        pass
    for _ in range(4):
        llm.engine.step()


def _step_ms(llm: LLM, steps: int) -> float:
    """Milliseconds of one step over `steps` of them."""
    start = time.perf_counter()
    for _ in range(steps):
        llm.engine.step()
    return round(1e3 * (time.perf_counter() - start) / steps, 4)


def _traced(llm: LLM, steps: int) -> dict[str, Any] | None:
    """The device's idle share over some steps; None where the profiler shows no device, as on a CPU."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level, options.host_tracer_level = 0, 0
    with TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(steps):
                llm.engine.step()
        files = list(Path(folder).rglob("*.xplane.pb"))
        busy = device_intervals(files[0]) if files else []
    if not busy:
        return None
    merged = union(busy)
    window = merged[-1][1] - merged[0][0]
    return {"idle_share": round(1 - sum(end - start for start, end in merged) / window, 4), "events": len(busy)}


def device_intervals(file: Path) -> list[Interval]:
    """Start and end, nanoseconds, of everything that ran on a GPU's streams in a profile."""
    data = jax.profiler.ProfileData.from_file(str(file))
    return [
        (event.start_ns, event.start_ns + event.duration_ns)
        for plane in data.planes
        if plane.name.startswith("/device:GPU")
        for line in plane.lines
        if line.name.startswith("Stream")
        for event in line.events
    ]


def union(intervals: list[Interval]) -> list[Interval]:
    """The same times as disjoint intervals, in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
