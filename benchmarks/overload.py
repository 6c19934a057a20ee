"""Offer a server more requests than it can serve: goodput, time to first token, and Retry-After.

A server before a simulated engine, whose capacity is known. Requests arrive at random (a Poisson process), whether or
not earlier ones have ended, at each of several multiples of the capacity. The first part of each run is not counted:
the queue fills in it. Goodput counts requests that were served whole. A refused request's Retry-After is compared with
the wait of the next request that was admitted, which came behind the same queue.

    python benchmarks/overload.py [--json FILE] [--seconds N] [--deadline SECONDS] [--load X ...]
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import aiohttp

from benchmarks.event_loop_parts.engine import ROWS, STEP_SECONDS
from benchmarks.overlap import running_server
from benchmarks.report import write_json

TOKENS = 25
CAPACITY = ROWS / (STEP_SECONDS * TOKENS)
"""Requests a second that the simulated device has rows for; prompts and refills of slots take some of it."""

_SETTLE_DEADLINES = 1.5
"""Deadlines after which the queue is as long as it gets."""


class Outcome(NamedTuple):
    """The end of a request. came: seconds from the start of the run. first_token, retry_after: seconds, or None."""

    came: float
    status: int
    first_token: float | None
    retry_after: float | None
    whole: bool


async def ask(session: aiohttp.ClientSession, url: str, came: float) -> Outcome:
    """Stream one completion."""
    body = {"prompt": "Once upon a time", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    begun, first, text = time.perf_counter(), None, b""
    async with session.post(url + "/v1/completions", json=body) as response:
        if response.status != 200:
            return Outcome(came, response.status, None, float(response.headers.get("Retry-After", "nan")), False)
        async for line in response.content:
            if first is None and line.startswith(b"data: {") and b'"error"' not in line:
                first = time.perf_counter() - begun
            text = line.strip() or text
    return Outcome(came, 200 if first is not None else 429, first, None, text == b"data: [DONE]")


async def offered(url: str, rate: float, seconds: float, seed: int) -> list[Outcome]:
    """Send requests at `rate` a second for so long; what became of each."""
    draws, begun = random.Random(seed), time.perf_counter()
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session, asyncio.TaskGroup() as group:
        tasks, due = [], 0.0
        while (due := due + draws.expovariate(rate)) < seconds:
            await asyncio.sleep(begun + due - time.perf_counter())
            tasks.append(group.create_task(ask(session, url, due)))
    return [task.result() for task in tasks]


def figures(load: float, outcomes: Sequence[Outcome], settle: float, seconds: float) -> dict[str, Any]:
    """Summarise the requests that came after the queue had settled."""
    counted = sorted(one for one in outcomes if one.came >= settle)
    waits = sorted(one.first_token for one in counted if one.first_token is not None)
    ratios = _retry_ratios(counted)
    return {
        "load": load,
        "offered_a_second": len(counted) / (seconds - settle),
        "goodput_a_second": sum(one.whole for one in counted) / (seconds - settle),
        "refused": sum(one.status == 429 for one in counted) / len(counted),
        "first_token_seconds": {"median": median(waits), "p99": waits[int(0.99 * len(waits))], "most": waits[-1]},
        "retry_after_over_wait": {"median": median(ratios), "least": min(ratios), "most": max(ratios)}
        if ratios
        else None,
    }


def _retry_ratios(outcomes: Sequence[Outcome]) -> list[float]:
    """Return for each refused request its Retry-After over the wait of the next request that was admitted."""
    ratios: list[float] = []
    wait = None
    for one in reversed(outcomes):
        if one.first_token is not None:
            wait = one.first_token
        elif one.retry_after is not None and wait is not None:
            ratios.append(one.retry_after / max(wait, 1.0))
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds that are counted at each load")
    parser.add_argument("--deadline", type=float, default=20.0, help="--default-deadline of the server")
    parser.add_argument("--load", type=float, nargs="+", default=[0.5, 1.0, 2.0, 5.0], help="multiples of the capacity")
    options = parser.parse_args()
    settle = _SETTLE_DEADLINES * options.deadline
    rows = []
    for load in options.load:
        flags = ["--default-deadline", str(options.deadline)]
        with running_server(["benchmarks.event_loop_parts.engine"], flags) as (url, _):
            seconds = settle + options.seconds
            outcomes = asyncio.run(offered(url, load * CAPACITY, seconds, seed=int(10 * load)))
        rows.append(figures(load, outcomes, settle, seconds))
        print(_line(rows[-1]), flush=True)
    write_json(options.json, {"capacity": CAPACITY, "deadline": options.deadline, "loads": rows})


def _line(row: dict[str, Any]) -> str:
    first, retry = row["first_token_seconds"], row["retry_after_over_wait"]
    told = "none" if retry is None else f"{retry['median']:.2f} ({retry['least']:.2f}-{retry['most']:.2f})"
    return (
        f"{row['load']:g} x capacity: offered {row['offered_a_second']:.1f}/s, goodput {row['goodput_a_second']:.1f}/s,"
        f" refused {row['refused']:.0%}, first token {first['median']:.2f} s (p99 {first['p99']:.2f}, most"
        f" {first['most']:.2f}), Retry-After over wait: {told}"
    )


if __name__ == "__main__":
    main()
