"""Host cost of a decode step: scheduling, packing, unpacking and stop checks, without a device.

The device is simulated and draws nothing, so all that is timed is what the host does between one
dispatch and the next. Every sequence takes a new block each time it has filled one, and the prefix cache is on.
The row of 256 is then timed with four drafts a row, of which three are kept; where none is ever kept, so that hardly
a step drafts; and in turns with and without 100,000 requests waiting, since what a machine does beside it moves one run
by more than they could.

    python benchmarks/host_cost.py [--json FILE] [--steps N] [--turns N]
"""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.report import write_json
from jaxinfer.config import SchedulerConfig
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.engine.stats.step_cost import StepCosts
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.engine.types import GenerateRequest, ModelInfo
from jaxinfer.sampling import SamplingParams
from jaxinfer.speculation import Speculation

RUNNING = (1, 16, 64, 256, 1024)
WAITING = 100_000
CROWDED = 256
"""Rows of the case with many requests waiting."""
DRAFTS, HIT_RATE = 4, 0.8
DRAFTING_STEPS = 1000
"""At most: with as many tokens each, rows come to the end of their context."""
CONTEXT, BLOCK, VOCABULARY = 8192, 16, 151_936
ELSEWHERE = {
    "vLLM V1, schedule + update": {"1": 30, "16": 196, "64": 729, "256": 3032},
    "mini-sglang, index tensors": {"1": 64, "16": 242, "64": 796, "256": 3053},
    "nano-vllm (does less)": {"1": 1, "16": 10, "64": 38, "256": 148},
}
"""Microseconds of one decode step by rows, of other engines: measured once by this project's authors, each with its
scheduler alone, on two shared CPU cores in November 2026; this program does not run them."""


class Row(NamedTuple):
    """Medians of one call of `EngineCore.step`, in microseconds: before the device has its step, and after it."""

    running: int
    schedule_us: float
    """Scheduling and packing."""
    apply_us: float
    """Unpacking, stop checks, and what clients are told."""
    step_us: float
    p95_us: float


class Crowd(NamedTuple):
    """Steps of `CROWDED` rows in microseconds, a median each turn, with nothing and with `WAITING` requests waiting."""

    alone_us: list[float]
    crowded_us: list[float]

    @property
    def change(self) -> float:
        """Relative change of the median over all turns."""
        return median(self.crowded_us) / median(self.alone_us) - 1


class TimedRunner(SimulatedRunner):
    """Notes when it was handed its last step, and how long the simulated device itself took so far."""

    dispatched = 0.0
    device_seconds = 0.0

    def finish(self, step, begun, counts):
        handle = super().finish(step, begun, counts)
        self.dispatched = time.perf_counter()
        return handle

    def _nothing(self, packed):
        start = time.perf_counter()
        columns = super()._nothing(packed)
        self.device_seconds += time.perf_counter() - start
        return columns


def make_engine(
    running: int, waiting: int, drafts: int = 0, hit_rate: float = HIT_RATE
) -> tuple[EngineCore, TimedRunner]:
    """An engine with `running` requests decoding, out of step, and more in its queue. drafts: of each row and step.
    hit_rate: of drafts that come after kept ones, how many are kept."""
    blocks = 1 + running * CONTEXT // BLOCK
    tokens = max(2048, running)
    groups, drafting = (KVGroup(None, blocks),), Speculation(drafts) if drafts else None
    shapes = EngineShapes(running, tokens, running, CONTEXT, BLOCK, groups, VOCABULARY, drafting=drafting)
    runner = TimedRunner(shapes, draws=False, hit_rate=hit_rate)
    info = ModelInfo("simulated", CONTEXT, VOCABULARY, running, BLOCK, blocks)
    config = SchedulerConfig(max_num_seqs=running, max_waiting=running + waiting + 1)
    core = EngineCore(
        runner,
        info,
        scheduler=config,
        eos_ids=(VOCABULARY - 1,),
        costs=StepCosts(1, 1, 1, (1,), (1,)),
    )
    for i in range(running + waiting):
        prompt = [(i * 131 + j) % 50_000 + 1 for j in range(100 + i % BLOCK if i < running else 8)]
        core.add_request(GenerateRequest(str(i), prompt, SamplingParams(max_tokens=None, temperature=0.0, seed=0)))
    while core.num_waiting > waiting or any(sequence.num_outputs < 2 for sequence in core.scheduler.state.running):
        core.step()
    for _ in range(2 * BLOCK):
        core.step()
    return core, runner


def time_steps(running: int, waiting: int, steps: int, drafts: int = 0, hit_rate: float = HIT_RATE) -> Row:
    """Steady-state decode steps, each timed by itself."""
    core, runner = make_engine(running, waiting, drafts, hit_rate)
    each = 1 + round(hit_rate * drafts)
    before, after = [], []
    while len(before) < steps:
        runner.device_seconds, start = 0.0, time.perf_counter()
        outputs = core.step()
        end = time.perf_counter()
        counts = [output.num_tokens for output in outputs]
        if each > 1 and counts == [running]:  # the engine tries now and then whether drafts pay
            continue
        before.append(runner.dispatched - start)
        after.append(end - runner.dispatched - runner.device_seconds)
        if counts != [running * each]:
            raise RuntimeError(f"a step gave {counts} tokens for {running} running requests, {each} each")
    whole = [sum(pair) for pair in zip(before, after, strict=True)]
    values = median(before), median(after), median(whole), quantiles(whole, n=20)[-1]
    return Row(running, *(round(1e6 * value, 1) for value in values))


def in_own_process(running: int, waiting: int, steps: int, drafts: int = 0, hit_rate: float = HIT_RATE) -> Row:
    """`time_steps` in a fresh process: memory that a case before had cut up made allocations a third slower."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(time_steps, running, waiting, steps, drafts, hit_rate).result()


def compare_crowd(turns: int, steps: int) -> Crowd:
    """Both cases one after the other, `turns` times."""
    pairs = [[in_own_process(CROWDED, waiting, steps).step_us for waiting in (0, WAITING)] for _ in range(turns)]
    alone, crowded = zip(*pairs, strict=True)
    return Crowd(list(alone), list(crowded))


def spread(values: list[float]) -> str:
    """The median, and the least and the most."""
    return f"{median(values):.0f} µs ({min(values):.0f}-{max(values):.0f})"


def time_rows(steps: int) -> list[Row]:
    """Every count of running requests, printed as it is timed."""
    rows = []
    print(f"{'running':>8} {'schedule µs':>12} {'apply µs':>9} {'step µs':>9} {'p95 µs':>9}")
    for running in RUNNING:
        row = in_own_process(running, 0, steps)
        rows.append(row)
        print(
            f"{row.running:8} {row.schedule_us:12.1f} {row.apply_us:9.1f} {row.step_us:9.1f} {row.p95_us:9.1f}",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parser.add_argument("--steps", type=int, default=1000, help="steps timed a row")
    parser.add_argument("--turns", type=int, default=9, help=f"turns with and without {WAITING:,} requests waiting")
    options = parser.parse_args()
    if options.turns < 1:
        parser.error("--turns must be at least 1")
    rows = time_rows(options.steps)
    drafting = in_own_process(CROWDED, 0, min(options.steps, DRAFTING_STEPS), DRAFTS)
    print(f"{CROWDED} running with {DRAFTS} drafts each: {drafting.step_us:.0f} µs (p95 {drafting.p95_us:.0f})")
    undrafted = in_own_process(CROWDED, 0, options.steps, DRAFTS, 0.0)
    print(f"{CROWDED} running whose drafts do not pay: {undrafted.step_us:.0f} µs (p95 {undrafted.p95_us:.0f})")
    crowd = compare_crowd(options.turns, options.steps)
    print(
        f"{CROWDED} running, in turns: {spread(crowd.alone_us)} with none waiting, "
        f"{spread(crowd.crowded_us)} with {WAITING:,}: {crowd.change:+.1%}"
    )
    found = {
        "rows": [row._asdict() for row in rows],
        "drafting": {"drafts": DRAFTS, **drafting._asdict()},
        "undrafted": undrafted._asdict(),
        "crowd": {"running": CROWDED, "waiting": WAITING, **crowd._asdict()},
        "elsewhere_us": ELSEWHERE,
    }
    write_json(options.json, found)
    print(f"host cost of a step at {CROWDED} running requests: {median(crowd.alone_us):.0f} µs (median)")


if __name__ == "__main__":
    main()
