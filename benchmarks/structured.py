"""Measure the cost of structured output on the host: compiling, filling masks, and how long steps wait for them.

Steps are those of a simulated device, of `--step-ms` each from the start of their forward pass; the tokens that it
draws are legal ones. Rows have schemas of their own, or none. The tokenizer decides the vocabulary.

`structured_share`: tokens a second of a whole server (HTTP, SSE, two processes, the client on the same cores) with 64
streams that all have schemas, over 64 that have none. `plain_beside`: tokens a second of 32 plain streams next to 32
with schemas, over the same 32 next to plain ones. All three take turns.

    python benchmarks/structured.py TOKENIZER.json [--json FILE] [--step-ms 20] [--rounds N] [--seconds N]
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from tokenizers import Tokenizer

from benchmarks.report import write_json
from benchmarks.structured_parts.server import schema, server_shares
from jaxinfer.config import SchedulerConfig
from jaxinfer.constraint import Constraint
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.engine.types import GenerateRequest, ModelInfo
from jaxinfer.grammar.grammars import Grammars
from jaxinfer.grammar.matcher import GrammarMatcher
from jaxinfer.sampling import SamplingParams

ROWS = (1, 16, 64)
STEPS, CONTEXT, BLOCK = 100, 4096, 16
END = 0


def main() -> None:
    """Measures, prints a line for each row and writes the file that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path, metavar="TOKENIZER.json")
    parser.add_argument("--json")
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each kind of streams")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds that streams are counted")
    asked = parser.parse_args()
    size = Tokenizer.from_file(str(asked.tokenizer)).get_vocab_size()
    grammars = Grammars(asked.tokenizer, size, (END,))
    start = time.perf_counter()
    grammars.compile(_params(0), frozenset({END}))
    found: dict[str, Any] = {"vocabulary": size, "first_ms": round(1e3 * (time.perf_counter() - start), 1)}
    found["compile_ms"] = _spread(_compile_ms(grammars))
    print(f"{size:,} tokens; the first grammar {found['first_ms']} ms, others {found['compile_ms']}", flush=True)
    found["rows"] = []
    for rows in ROWS:
        fill = _spread(_fill_ms(grammars, rows, size))
        free, bound = (_spread(_step_ms(grammars, rows, size, asked.step_ms, kind)) for kind in ("free", "bound"))
        wait = bound["mean"] / free["mean"] - 1
        found["rows"].append({"rows": rows, "fill_ms": fill, "free_ms": free, "bound_ms": bound, "wait_share": wait})
        print(f"{rows} rows: masks {fill['median']} ms, steps {free['mean']} -> {bound['mean']} ms ({wait:+.1%})")
    found["server"] = server_shares(asked.tokenizer.resolve(), asked.step_ms / 1e3, asked.rounds, asked.seconds)
    write_json(asked.json, found)
    print(", ".join(f"{name} {_shown(found['server'][name])}" for name in ("structured_share", "plain_beside")))


def _shown(share: dict[str, float]) -> str:
    return f"{share['median']:.1%} ({share['lowest']:.1%}-{share['highest']:.1%})"


def _params(number: int) -> SamplingParams:
    """A schema of its own, of a text that does not end soon."""
    return SamplingParams(max_tokens=None, seed=number, structured_outputs=Constraint.schema(schema(number)))


def _compile_ms(grammars: Grammars) -> Iterator[float]:
    for number in range(1000, 1050):
        start = time.perf_counter()
        grammars.compile(_params(number), frozenset({END}))
        yield 1e3 * (time.perf_counter() - start)


def _fill_ms(grammars: Grammars, rows: int, size: int) -> Iterator[float]:
    """Measure the milliseconds to fill the masks of all rows together, each some tokens into its text."""
    draw, masks = random.Random(0), np.zeros((rows, -(-size // 32)), np.int32)
    matchers = [grammars.compile(_params(number), frozenset({END})) for number in range(rows)]
    for _ in range(STEPS):
        start = time.perf_counter()
        grammars.fill(matchers, masks)
        yield 1e3 * (time.perf_counter() - start)
        for matcher, mask in zip(matchers, masks, strict=True):
            _go_on(matcher, mask, draw)


def _go_on(matcher: GrammarMatcher, mask: np.ndarray, draw: random.Random) -> None:
    legal = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    matcher.accept([int(draw.choice(legal))])


def _step_ms(grammars: Grammars, rows: int, size: int, step_ms: float, kind: str) -> Iterator[float]:
    """Between the results of steps in which all rows decode."""
    blocks = 1 + rows * CONTEXT // BLOCK
    shapes = EngineShapes(rows, max(512, rows), rows, CONTEXT, BLOCK, (KVGroup(None, blocks),), size)
    info = ModelInfo("simulated", CONTEXT, size, rows, BLOCK, blocks)
    runner = SimulatedRunner(shapes, step_seconds=step_ms / 1e3)
    core = EngineCore(runner, info, scheduler=SchedulerConfig(max_num_seqs=rows), constraints=grammars, eos_ids=(END,))
    for number in range(rows):
        params = _params(number) if kind == "bound" else SamplingParams(max_tokens=None, seed=number)
        core.add_request(GenerateRequest(str(number), [1 + number], params))
    passed, last = count(), time.perf_counter()
    while next(passed) < STEPS + 10:
        core.step()
        now = time.perf_counter()
        if core.in_flight.collected > 10:
            yield 1e3 * (now - last)
        last = now
    core.abort_all()
    core.close()


def _spread(values: Iterator[float]) -> dict[str, float]:
    found = sorted(values)
    at = {"median": median(found), "mean": fmean(found), "p95": found[int(0.95 * len(found))]}
    return {name: round(value, 3) for name, value in at.items()}


if __name__ == "__main__":
    main()
