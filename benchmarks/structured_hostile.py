"""What hostile structured output does to others: their time between tokens, the server's memory, and its answers.

`jaxinfer serve demo`, the real model, in processes of its own. Eight plain streams run all the time; an attack sends
requests at a bounded rate, in turns with times without one. A turn's figures are of all tokens of the eight streams in
it; the ratio is of an attack's turn to the quiet one before it. Memory is that of all the server's processes, without
what they share with others. Client and server share the machine's cores.

    python benchmarks/structured_hostile.py [--json FILE] [--seconds N] [--rounds N] [--only TEXT] [--rate FACTOR]
"""

import argparse
import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import aiohttp
import psutil

from benchmarks.overlap import started
from benchmarks.report import write_json
from benchmarks.structured_parts.hostile import ATTACKS, Bodies

ROOT = Path(__file__).parents[1]
STREAMS, AT_ONCE, PATIENCE = 8, 16, 60.0
"""Plain streams; requests of an attack that may be open at a time; seconds after which an answer counts as none."""
PLAIN = {"prompt": "Once upon a time", "max_tokens": 1900, "ignore_eos": True, "temperature": 1.0, "stream": True}
NO_ANSWER = 0


class Server(NamedTuple):
    """A server that runs."""

    url: str
    process: psutil.Process

    def memory_mb(self) -> float:
        """Of all its processes."""
        total = 0
        for process in (self.process, *self.process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total / 2**20


@contextlib.contextmanager
def running_server() -> Iterator[Server]:
    """The demo, once it is ready."""
    command = [
        sys.executable,
        "-m",
        "jaxinfer",
        "serve",
        "demo",
        "--port",
        "0",
        "--max-num-seqs",
        "16",
        "--disable-log-stats",
    ]
    with started([*command, "--drain-seconds", "0"], ROOT) as (process, said):
        yield Server(next(word for word in said.split() if word.startswith("http")), psutil.Process(process))


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
        """With all streams, which begin anew where they end."""
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._stream(session)) for _ in range(STREAMS)]
            while len(self.seconds) < 100 * STREAMS:
                await asyncio.sleep(0.1)
            yield
            for task in tasks:
                task.cancel()

    def lap(self) -> dict[str, float]:
        """Of the time since the last lap, in milliseconds."""
        found, self.seconds = sorted(self.seconds), []
        at = {"p50": 0.5, "p99": 0.99, "longest": 1.0}
        values = {name: round(1e3 * found[int(share * (len(found) - 1))], 3) for name, share in at.items()}
        return {**values, "tokens": len(found)}


async def attack(server: Server, bodies: list[bytes], rate: float, seconds: float) -> Counter[int]:
    """Requests at a rate; the answers by status once all have come."""
    answers: Counter[int] = Counter()
    places, timeout = asyncio.Semaphore(AT_ONCE), aiohttp.ClientTimeout(PATIENCE)
    async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
        begun = time.perf_counter()
        for number, body in enumerate(bodies):
            await asyncio.sleep(begun + number / rate - time.perf_counter())
            if time.perf_counter() - begun > seconds:
                break
            await places.acquire()
            group.create_task(_send(server, session, body, answers, places))
    return answers


async def _send(
    server: Server, session: aiohttp.ClientSession, body: bytes, answers: Counter[int], places: asyncio.Semaphore
) -> None:
    try:
        headers = {"Content-Type": "application/json"}
        async with session.post(f"{server.url}/v1/completions", data=body, headers=headers) as response:
            await response.read()
            answers[response.status] += 1
    except (TimeoutError, aiohttp.ClientError):
        answers[NO_ANSWER] += 1
    finally:
        places.release()


async def measured(server: Server, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each attack."""
    gaps, rows = Gaps(server), []
    async with gaps.running():
        for name, (bodies, rate) in ATTACKS.items():
            if options.only not in name:
                continue
            turns = [await _turn(server, gaps, bodies, rate * options.rate, options.seconds, i)
                     for i in range(options.rounds)]  # fmt: skip
            rows.append(_row(name, rate * options.rate, turns))
            print(_described(rows[-1]), flush=True)
    return rows


async def _turn(server: Server, gaps: Gaps, bodies: Bodies, rate: float, seconds: float, number: int) -> dict[str, Any]:
    """A time without the attack, and one with it, until its last answer. Bodies are made before: that takes time which
    the streams' reader has not."""
    first, count = int(number * rate * seconds), max(1, int(rate * seconds))
    made = [bodies(first + i) for i in range(count)]
    gaps.seconds.clear()
    await asyncio.sleep(seconds)
    quiet, before = gaps.lap(), server.memory_mb()
    watching = asyncio.create_task(_most_memory(server))
    answers = await attack(server, made, rate, seconds)
    under = gaps.lap()
    watching.cancel()
    most = await watching
    return {"quiet": quiet, "attack": under, "answers": dict(answers), "before_mb": before, "most_mb": most}


async def _most_memory(server: Server) -> float:
    """Until it is cancelled."""
    most = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            most = max(most, await asyncio.to_thread(server.memory_mb))
            await asyncio.sleep(0.5)
    return most


def _row(name: str, rate: float, turns: list[dict[str, Any]]) -> dict[str, Any]:
    answers: Counter[int] = Counter()
    for turn in turns:
        answers.update(turn["answers"])
    ratios = {
        at: [round(turn["attack"][at] / turn["quiet"][at], 3) for turn in turns] for at in ("p50", "p99")
    }  # fmt: skip
    return {
        "attack": name,
        "rate": rate,
        "answers_by_status": {str(status): answers[status] for status in sorted(answers)},
        "p50_ratio": median(ratios["p50"]),
        "p99_ratio": median(ratios["p99"]),
        "most_mb": max(turn["most_mb"] for turn in turns),
        "ratios": ratios,
        "turns": turns,
    }


def _described(row: dict[str, Any]) -> str:
    first, last = row["turns"][0], row["turns"][-1]
    quiet, under = (median(turn[kind]["p99"] for turn in row["turns"]) for kind in ("quiet", "attack"))
    return (
        f"{row['attack']:28} {row['rate']:4g}/s  answers {row['answers_by_status']}, p50 x {row['p50_ratio']:.2f}, p99 "
        f"{quiet:.1f} -> {under:.1f} ms, x {row['p99_ratio']:.2f} {row['ratios']['p99']}, memory "
        f"{first['before_mb']:.0f} -> {last['before_mb']:.0f} MB, most {row['most_mb']:.0f}"
    )


def main() -> None:
    """Attacks, prints a line for each and writes the file that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each attack, and as many without")
    parser.add_argument("--only", metavar="TEXT", default="", help="attacks whose names have TEXT")
    parser.add_argument("--rate", type=float, default=1.0, help="times the rates of requests")
    options = parser.parse_args()
    with running_server() as server:
        started_mb = server.memory_mb()
        rows = asyncio.run(measured(server, options))
        ended_mb = server.memory_mb()
    worst = max(row["p99_ratio"] for row in rows)
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
