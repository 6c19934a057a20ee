"""Host cost of a decode step: scheduling, packing, unpacking and stop checks, without a device.

The device is simulated and draws nothing, so all that is timed is what the host does between one
dispatch and the next. Every request crosses into a new page once a block, the prefix cache is on,
and the largest row is timed again with 100,000 requests waiting.

    python benchmarks/host_cost.py [--json FILE] [--steps N]
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.report import write_json
from jaxinfer.config import SchedulerConfig
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.shapes import EngineShapes, KVGroup
from jaxinfer.engine.simulated import SimulatedRunner
from jaxinfer.engine.types import GenerateRequest, ModelInfo
from jaxinfer.sampling import SamplingParams

RUNNING = (1, 16, 64, 256)
WAITING = 100_000
CONTEXT, BLOCK, VOCABULARY = 8192, 16, 151_936


class Row(NamedTuple):
    """Microseconds of one call of `EngineCore.step`, and of its packing alone."""

    running: int
    waiting: int
    step_us: float
    p95_us: float
    pack_us: float


class TimedPacking(SimulatedRunner):
    """Adds up the time that dispatch takes: packing, since nothing is run."""

    pack_seconds: list[float]

    def dispatch(self, plan):
        start = time.perf_counter()
        handle = super().dispatch(plan)
        self.pack_seconds.append(time.perf_counter() - start)
        return handle


def make_engine(running: int, waiting: int) -> tuple[EngineCore, list[float]]:
    """An engine with `running` requests decoding, out of step, and more in its queue; seconds of its dispatches."""
    pages = 1 + running * CONTEXT // BLOCK
    tokens = max(2048, running)
    shapes = EngineShapes(running, tokens, running, CONTEXT, BLOCK, (KVGroup(None, pages),), VOCABULARY)
    runner = TimedPacking(shapes, draws=False)
    runner.pack_seconds = []
    info = ModelInfo("simulated", CONTEXT, VOCABULARY, running, BLOCK, pages)
    config = SchedulerConfig(max_num_seqs=running, max_waiting=running + waiting + 1)
    core = EngineCore(runner, info, scheduler=config, eos_ids=(VOCABULARY - 1,))
    for i in range(running + waiting):
        prompt = [(i * 131 + j) % 50_000 + 1 for j in range(100 + i % BLOCK if i < running else 8)]
        core.add_request(GenerateRequest(str(i), prompt, SamplingParams(max_tokens=None, temperature=0.0, seed=0)))
    while any(request.num_outputs < 2 for request in core.scheduler.running):
        core.step()
    for _ in range(2 * BLOCK):
        core.step()
    runner.pack_seconds.clear()
    return core, runner.pack_seconds


def time_steps(running: int, waiting: int, steps: int) -> Row:
    """Steady-state decode steps, each timed by itself."""
    core, pack_seconds = make_engine(running, waiting)
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        outputs = core.step()
        seconds.append(time.perf_counter() - start)
        if [output.num_tokens for output in outputs] != [running]:
            raise RuntimeError(f"a step gave {outputs} for {running} running requests")
    p95 = quantiles(seconds, n=20)[-1]
    pack = median(pack_seconds)
    return Row(running, waiting, *(round(1e6 * value, 1) for value in (median(seconds), p95, pack)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parser.add_argument("--steps", type=int, default=1000, help="steps timed a row")
    options = parser.parse_args()
    rows = []
    print(f"{'running':>8} {'waiting':>8} {'step µs':>9} {'p95 µs':>9} {'pack µs':>9}")
    for running, waiting in [*((count, 0) for count in RUNNING), (RUNNING[-1], WAITING)]:
        row = time_steps(running, waiting, options.steps)
        rows.append(row)
        print(f"{row.running:8} {row.waiting:8} {row.step_us:9.1f} {row.p95_us:9.1f} {row.pack_us:9.1f}", flush=True)
    write_json(options.json, {"rows": [row._asdict() for row in rows]})
    print(f"host cost of a step at {rows[-2].running} running requests: {rows[-2].step_us:.0f} µs (median)")


if __name__ == "__main__":
    main()
