"""Compute how busy the stages of a pipeline are, and how long requests wait, by the scheduler's own plans.

A simulated device of S stages, whose clock only results advance, computes what the scheduler plans for the requests of
a trace (CSV with ContextTokens and GeneratedTokens, as Azure publishes them; prompts of more than `--longest` tokens
are cut). A stage takes the larger of `--step-ms` and `--token-us` a token. `spread`: as the engine does. `fixed`:
prompts take whatever a step has left, and rows are spread. `together`: each step takes all rows whose tokens are back.

`saturated`: all requests wait from the beginning; each stage's share of the time in which it computes, until the queue
is empty. `loaded`: requests come evenly, at `--load` of the rate that was served then. `alone`: the time of one prompt
of 32 full steps, relative to that of stages in turn.

    python benchmarks/pipeline.py TRACE.csv [--json FILE] [--svg FILE] [--stages 4] [--requests 1500]
"""

import argparse
import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report import write_json
from benchmarks.stages_svg import draw
from jaxinfer.config import CacheConfig, SchedulerConfig
from jaxinfer.engine.client.sequence_ids import SequenceIds
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.engine.device.simulated_pipeline import SimulatedPipeline
from jaxinfer.engine.scheduler.stage_rows import StageRows
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.engine.types import GenerateRequest, ModelInfo
from jaxinfer.sampling import SamplingParams

ROWS, BUDGET, BLOCK, VOCABULARY = 256, 2048, 16, 32_000
CHUNKS = 32
WARM = 0.02
"""Share of the time that is not counted: rows are not spread yet."""
DRAWN_STEPS = 24


class Asked(NamedTuple):
    """A request of a trace, in tokens."""

    prompt: int
    output: int


class Served(NamedTuple):
    """busy: of each stage until the queue was empty. seconds, tokens: of all. first, each: seconds until a request's
    first token, and of each that follows."""

    busy: list[float]
    seconds: float
    tokens: int
    first: list[float]
    each: list[float]
    pipeline: SimulatedPipeline


def main() -> None:
    """Measures, prints a line for each variant and writes the files that were asked for."""
    asked = _arguments()
    requests = list(_read(asked.trace, asked.longest))[: asked.requests]
    simulate = _simulation(asked)
    found: dict[str, Any] = {"stages": asked.stages, "step_ms": asked.step_ms, "token_us": asked.token_us}
    found |= {"requests": len(requests), "saturated": [], "loaded": []}
    drawn = {}
    for name in VARIANTS:
        with VARIANTS[name]():
            served = simulate(requests, None)
            drawn[name] = served.pipeline
            found["saturated"].append({"variant": name, **_saturated(served)})
            print(_saturated_line(found["saturated"][-1]), flush=True)
    rate = asked.load * len(requests) / found["saturated"][0]["seconds"]
    for name in VARIANTS:
        with VARIANTS[name]():
            found["loaded"].append({"variant": name, **_loaded(simulate(requests, rate), rate)})
            print(_loaded_line(found["loaded"][-1]), flush=True)
    alone = simulate([Asked(CHUNKS * BUDGET, 1)], None)
    found["alone"] = round(alone.seconds / (CHUNKS * asked.stages * _seconds(asked)(BUDGET)), 3)
    write_json(asked.json, found)
    if asked.svg:
        Path(asked.svg).write_text(draw(drawn, DRAWN_STEPS, f"{asked.stages} stages, a colour a step"))
    least, fixed = (min(row["busy"]) for row in found["saturated"][:2])
    print(f"stages_busy {least:.1%}, fixed budgets {fixed:.1%}, a prompt alone {found['alone']:.1%} of stages in turn")


def _simulation(asked: argparse.Namespace) -> Callable[[Sequence[Asked], float | None], Served]:
    def simulate(requests: Sequence[Asked], rate: float | None) -> Served:
        """rate: requests a second; None: all at once."""
        length = max(sum(request) for request in requests)
        blocks = 1 + ROWS * -(-length // BLOCK)
        shapes = EngineShapes(
            ROWS, BUDGET, ROWS, length, BLOCK, (KVGroup(None, blocks),), VOCABULARY, stages=asked.stages
        )
        pipeline = SimulatedPipeline(asked.stages, _seconds(asked))
        core = EngineCore(
            SimulatedRunner(shapes, draws=False, pipeline=pipeline),
            ModelInfo("simulated", length, VOCABULARY, ROWS, BLOCK, blocks),
            scheduler=SchedulerConfig(max_num_seqs=ROWS, max_waiting=len(requests)),
            cache=CacheConfig(enable_prefix_caching=False),
            clock=pipeline.clock,
        )
        return _serve(core, pipeline, requests, rate)

    return simulate


def _serve(core: EngineCore, pipeline: SimulatedPipeline, requests: Sequence[Asked], rate: float | None) -> Served:
    arrivals = [0.0 if rate is None else number / rate for number in range(len(requests))]
    names, came, empty = SequenceIds(), dict[str, list[float]](), 0.0
    added = 0
    while added < len(requests) or core.has_work():
        if not core.has_work():
            pipeline.wait(arrivals[added])
        while added < len(requests) and arrivals[added] <= pipeline.now:
            core.add_request(_request(str(added), requests[added]))
            added += 1
        for delta in names.expand(core.step()):
            came.setdefault(delta.request_id, []).extend([pipeline.now] * len(delta.token_ids))
        if core.num_waiting:
            empty = pipeline.now
    core.close()
    first = [times[0] - arrivals[int(name)] for name, times in came.items()]
    each = [(times[-1] - times[0]) / (len(times) - 1) for times in came.values() if len(times) > 1]
    end = empty if rate is None and empty else pipeline.now
    return Served(pipeline.busy(WARM * end, end), pipeline.now, sum(map(len, came.values())), first, each, pipeline)


def _request(name: str, asked: Asked) -> GenerateRequest:
    params = SamplingParams(max_tokens=asked.output, ignore_eos=True, seed=0)
    return GenerateRequest(name, [1] * asked.prompt, params)


def _seconds(asked: argparse.Namespace) -> Callable[[int], float]:
    return lambda tokens: max(asked.step_ms * 1e-3, tokens * asked.token_us * 1e-6)


@contextmanager
def _spread() -> Iterator[None]:
    yield


@contextmanager
def _fixed() -> Iterator[None]:
    kept = StageRows.prompt_tokens
    StageRows.prompt_tokens = lambda self: BUDGET
    yield
    StageRows.prompt_tokens = kept


@contextmanager
def _together() -> Iterator[None]:
    kept = StageRows.due
    StageRows.due = lambda self, slots, step: slots[self._state.table.drawn_at[slots] <= step - self._stages]
    with _fixed():
        yield
    StageRows.due = kept


VARIANTS = {"spread": _spread, "fixed": _fixed, "together": _together}


def _saturated(served: Served) -> dict[str, Any]:
    return {
        "busy": [round(share, 4) for share in served.busy],
        "seconds": round(served.seconds, 2),
        "tokens_a_second": round(served.tokens / served.seconds, 1),
        "steps": 1 + max(run.step for run in served.pipeline.runs),
    }


def _saturated_line(row: dict[str, Any]) -> str:
    busy = ", ".join(f"{share:.1%}" for share in row["busy"])
    return f"saturated {row['variant']:9} stages busy {busy}; {row['tokens_a_second']:.0f} tokens/s"


def _loaded(served: Served, rate: float) -> dict[str, Any]:
    return {"requests_a_second": round(rate, 2), "first_ms": _ms(served.first), "each_ms": _ms(served.each)}


def _loaded_line(row: dict[str, Any]) -> str:
    first, each = row["first_ms"], row["each_ms"]
    return (
        f"loaded    {row['variant']:9} {row['requests_a_second']} requests/s: first token {first['median']} ms "
        f"(p95 {first['p95']}), each after it {each['median']} ms (p95 {each['p95']})"
    )


def _ms(seconds: list[float]) -> dict[str, float]:
    return {"median": round(1e3 * median(seconds), 1), "p95": round(1e3 * quantiles(seconds, n=20)[-1], 1)}


def _read(trace: Path, longest: int) -> Iterator[Asked]:
    with trace.open() as file:
        for row in csv.DictReader(file):
            yield Asked(min(max(int(row["ContextTokens"]), 1), longest), max(int(row["GeneratedTokens"]), 1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, metavar="TRACE.csv")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--svg", metavar="FILE")
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--longest", type=int, default=6000)
    parser.add_argument("--step-ms", type=float, default=8.0)
    parser.add_argument("--token-us", type=float, default=50.0)
    parser.add_argument("--load", type=float, default=0.5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
