"""Measure the effect of hostile structured output on others: their time between tokens, the server's memory and
answers.

A server runs in processes of its own, over a simulated device whose steps take `--step-ms`, like a server with a GPU,
with the grammars of a tokenizer; without one `jaxinfer serve demo`, the real model, which computes on the cores that
attacks are answered on. Eight plain streams run all the time; an attack sends requests at a bounded rate, in turns with
times without one. A turn's figures are of all tokens of the eight streams in it; the ratio is of an attack's turn to
the quiet one before it. Memory is that of all the server's processes, without what they share with others. Client and
server share the machine's cores; the control, processes of the lowest priority that only count, one for each core,
shows the effect of any other work on them.

    python benchmarks/structured_hostile.py [TOKENIZER.json] [--step-ms 20] [--json FILE] [--seconds N] [--rounds N]
        [--only TEXT] [--rate FACTOR]
"""

import argparse
import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import aiohttp

from benchmarks.overlap import running_server, started
from benchmarks.report import write_json
from benchmarks.structured_parts.attacker import CONTROL, QUIET, Attack, carry_out, give_way, memory_mb, prepare
from benchmarks.structured_parts.hostile import ATTACKS

ROOT = Path(__file__).parents[1]
ROWS = 16
STREAMS = 8
PLAIN = {"prompt": "Once upon a time", "max_tokens": 1900, "ignore_eos": True, "temperature": 1.0, "stream": True}


class Server(NamedTuple):
    """A server that runs. pids: of processes which, with their children, are all that it is."""

    url: str
    pids: tuple[int, ...]


@contextlib.contextmanager
def running_demo() -> Iterator[Server]:
    """The demo, once it is ready."""
    command = [sys.executable, "-m", "jaxinfer", "serve", "demo", "--port", "0", "--drain-seconds", "0"]
    with started([*command, "--max-num-seqs", str(ROWS), "--disable-log-stats"], ROOT) as (process, said):
        url = next(word for word in said.split() if word.startswith("http"))
        yield Server(url, (process,))


@contextlib.contextmanager
def running_simulated(tokenizer: Path, step_seconds: float) -> Iterator[Server]:
    """A server over a simulated device."""
    engine = ["benchmarks.structured_parts.engine", str(tokenizer), str(ROWS), str(step_seconds)]
    with running_server(engine, ["--tokenizer", str(tokenizer.parent)]) as (url, processes):
        yield Server(url, (processes["engine"].pid, processes["api"].ppid()))


class Gaps:
    """Times between the events of each stream, as long as it is entered."""

    def __init__(self, server: Server):
        self._server = server
        self.seconds: list[float] = []

    async def _stream(self, session: aiohttp.ClientSession) -> None:
        while True:
            async with session.post(f"{self._server.url}/v1/completions", json=PLAIN) as response:
                response.raise_for_status()
                last = None
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        now = time.perf_counter()
                        if last is not None:
                            self.seconds.append(now - last)
                        last = now

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep all streams running, each restarted when it ends."""
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._stream(session)) for _ in range(STREAMS)]
            while len(self.seconds) < 100 * STREAMS:
                await asyncio.sleep(0.1)
            yield
            for task in tasks:
                task.cancel()

    def lap(self) -> dict[str, float]:
        """Return the times between tokens since the last lap, in milliseconds."""
        found, self.seconds = sorted(self.seconds), []
        at = {"p50": 0.5, "p99": 0.99, "longest": 1.0}
        values = {name: round(1e3 * found[int(share * (len(found) - 1))], 3) for name, share in at.items()}
        return {**values, "tokens": len(found)}


async def measured(server: Server, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each attack."""
    gaps, rows = Gaps(server), []
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=give_way) as elsewhere:
        async with gaps.running():
            for name, (_, rate) in {CONTROL: (None, 0.0), **ATTACKS}.items():
                if options.only in name:
                    turns = [
                        await _turn(server, gaps, elsewhere, Attack(name, i, rate * options.rate, options.seconds))
                        for i in range(options.rounds)
                    ]
                    rows.append(_row(name, rate * options.rate, turns))
                    print(_described(rows[-1]), flush=True)
    return rows


async def _turn(server: Server, gaps: Gaps, elsewhere: Executor, what: Attack) -> dict[str, Any]:
    """A time without the attack, and one with it, until its last answer."""
    turn: dict[str, Any] = {}
    for kind, trouble in (("quiet", Attack(QUIET, 0, 0.0, what.seconds)), ("attack", what)):
        await asyncio.wrap_future(elsewhere.submit(prepare, trouble))
        gaps.seconds.clear()
        found = await asyncio.wrap_future(elsewhere.submit(carry_out, server.url, server.pids))
        turn[kind] = {**gaps.lap(), **found}
    return turn


def _row(name: str, rate: float, turns: list[dict[str, Any]]) -> dict[str, Any]:
    answers: Counter[int] = Counter()
    for turn in turns:
        answers.update(turn["attack"]["answers"])
    ratios = {
        at: [round(turn["attack"][at] / turn["quiet"][at], 3) for turn in turns] for at in ("p50", "p99")
    }  # fmt: skip
    return {
        "attack": name,
        "rate": rate,
        "answers_by_status": {str(status): answers[status] for status in sorted(answers)},
        "p50_ratio": median(ratios["p50"]),
        "p99_ratio": median(ratios["p99"]),
        "most_mb": max(turn["attack"]["most_mb"] for turn in turns),
        "ratios": ratios,
        "turns": turns,
    }


def _described(row: dict[str, Any]) -> str:
    first, last = row["turns"][0], row["turns"][-1]
    quiet, under = (median(turn[kind]["p99"] for turn in row["turns"]) for kind in ("quiet", "attack"))
    return (
        f"{row['attack']:28} {row['rate']:4g}/s  answers {row['answers_by_status']}, p50 x {row['p50_ratio']:.2f}, p99 "
        f"{quiet:.1f} -> {under:.1f} ms, x {row['p99_ratio']:.2f} {row['ratios']['p99']}, memory "
        f"{first['quiet']['last_mb']:.0f} -> {last['attack']['last_mb']:.0f} MB, most {row['most_mb']:.0f}"
    )


def main() -> None:
    """Attacks, prints a line for each and writes the file that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", nargs="?", type=Path, metavar="TOKENIZER.json", help="simulate a device")
    parser.add_argument("--step-ms", type=float, default=20.0, help="of the simulated device")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each attack, and as many without")
    parser.add_argument("--only", metavar="TEXT", default="", help="attacks whose names have TEXT")
    parser.add_argument("--rate", type=float, default=1.0, help="times the rates of requests")
    options = parser.parse_args()
    simulated = options.tokenizer and running_simulated(options.tokenizer.resolve(), options.step_ms / 1e3)
    with simulated or running_demo() as server:
        started_mb = memory_mb(server.pids)
        rows = asyncio.run(measured(server, options))
        ended_mb = memory_mb(server.pids)
    worst = max((row["p99_ratio"] for row in rows if row["attack"] != CONTROL), default=0.0)
    answers = sum((Counter(row["answers_by_status"]) for row in rows), Counter())
    wrong = sum(count for status, count in answers.items() if not 200 <= int(status) < 500)
    write_json(options.json, {"started_mb": started_mb, "ended_mb": ended_mb, "worst_p99_ratio": worst, "rows": rows})
    print(
        f"p99 between tokens x {worst:.2f} at worst, memory {started_mb:.0f} -> {ended_mb:.0f} MB, most "
        f"{max(row['most_mb'] for row in rows):.0f}, {wrong} of {answers.total()} answers are neither a result nor an "
        "error of the request"
    )


if __name__ == "__main__":
    main()
