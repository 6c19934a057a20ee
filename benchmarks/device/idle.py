"""Measure how long the device waits for the host between decode steps, one step ahead and without.

There are two methods. By time: the wall time of an engine's step against the same step on a host that only dispatches
plans made beforehand; the difference is time in which the device had nothing to do (or the host's work slowed it). A
difference smaller than the noise of both measurements may be negative. By trace: the profiler's record of a GPU's
streams, or of a TPU's operations; idle is the share of the time between the first and the last in which no kernel and
no copy ran. A TPU's record shows a loop as one operation.
"""

import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import jax

from benchmarks.device.context import Context
from benchmarks.device.engine import start_engine
from benchmarks.device.rig import Rig
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.llm import LLM
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.sampling import SamplingParams

Interval = tuple[float, float]

_DEVICE_LINES = {"/device:GPU": "Stream", "/device:TPU": "XLA Ops"}
"""Prefixes of the profiler's names of devices, and of the lines that show what ran on them."""


def measure(context: Context) -> None:
    """Needs a start of the engine, which is warm after `serving`."""
    llm = start_engine(context)
    rows, steps = context.form.slots, context.form.steps
    _fill(llm, rows, context.form.longest // 2, 8 * steps + 64)
    found: dict[str, dict[str, Any]] = {}
    for name, ahead in (("overlap", 1), ("no_overlap", 0)):
        llm.engine.steps_ahead = ahead
        llm.engine.step()  # from here on as many steps are read as are dispatched
        tokens = _tokens_a_row(llm)
        found[name] = {"context": tokens, "engine_step_ms": _step_ms(llm, rows, steps), "traced": _traced(llm, steps)}
        context.save(rows=rows, **found)
    llm.engine.abort_all()
    while llm.engine.has_work():
        llm.engine.step()
    assert isinstance(llm.engine.runner, JaxRunner)
    rig = Rig(llm.engine.runner)
    for each in found.values():
        # Each at the context of its own: a step reads more the longer its rows are.
        alone = round(1e3 * median(rig.decode_seconds(rows, each["context"], steps, 3)), 4)
        each |= {"device_step_ms": alone, "idle_share_by_time": round(1 - alone / each["engine_step_ms"], 4)}
    context.save(**found)
    llm.close()


def _fill(llm: LLM, rows: int, prompt: int, output: int) -> None:
    """Brings `rows` requests to where all decode."""
    params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
    top = llm.info.vocab_size - 1
    for row in range(rows):
        llm.engine.add_request(GenerateRequest(f"idle-{row}", [1 + (row + i) % top for i in range(prompt)], params))
    while _tokens(llm) < rows:
        if not llm.engine.has_work():
            raise RuntimeError(f"{rows} requests were never decoded at once")
    for _ in range(4):
        llm.engine.step()


def _tokens(llm: LLM) -> int:
    """Tokens that one call of `step` gave."""
    return sum(output.num_tokens for output in llm.engine.step())


def _tokens_a_row(llm: LLM) -> int:
    """The median row's tokens, prompt and output."""
    return int(median(len(sequence.tokens) for sequences in llm.engine._sequences.values() for sequence in sequences))


def _step_ms(llm: LLM, rows: int, steps: int) -> float:
    """Milliseconds of one step over `steps` of them. Raises RuntimeError where one was not of all rows."""
    made = []
    start = time.perf_counter()
    for _ in range(steps):
        made.append(_tokens(llm))
    seconds = time.perf_counter() - start
    if set(made) != {rows}:
        raise RuntimeError(f"steps gave {min(made)} to {max(made)} tokens where {rows} rows decode")
    return round(1e3 * seconds / steps, 4)


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
    """Start and end, nanoseconds, of everything that ran on a GPU or TPU in a profile."""
    return intervals_of(jax.profiler.ProfileData.from_file(str(file)))


def intervals_of(data: Any) -> list[Interval]:
    """data: a profile, or what has its form."""
    return [(event.start_ns, event.start_ns + event.duration_ns) for event in device_events(data)]


def device_events(data: Any) -> list[Any]:
    """Return everything that ran on a GPU or TPU in a profile."""
    return [
        event
        for plane in data.planes
        for device, begin in _DEVICE_LINES.items()
        if plane.name.startswith(device)
        for line in plane.lines
        if line.name.startswith(begin)
        for event in line.events
    ]


def union(intervals: list[Interval]) -> list[Interval]:
    """Merge intervals into disjoint ones that cover equal times, in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
