"""Measure how long hostile bodies and slow senders block an API process's event loop, and how much memory they take.

A server runs on a simulated engine. A probe in a process of its own asks for /healthz every two milliseconds: the
longest answer is the longest stall. Meanwhile a neighbour streams, whose tokens are known beforehand. `idle` runs
without an attack, with two processes that keep two cores busy. Memory is that of the API process and of its children.

    python benchmarks/event_loop.py [--json FILE] [--seconds N] [--only TEXT]
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))

import aiohttp
import psutil

from benchmarks.event_loop_parts.attacks import ATTACKS, Target
from benchmarks.overlap import started
from benchmarks.report import write_json
from jaxinfer.serving.file_limit import raise_file_limit

ROOT = Path(__file__).parents[1]
PROMPT, SEED = list(range(40, 72)), 7
MOST_STALL_MS, MOST_MEMORY_MB = 50.0, 500.0


class Server(NamedTuple):
    """A server that runs."""

    url: str
    api: psutil.Process

    @property
    def target(self) -> Target:
        place = urlsplit(self.url)
        return Target(str(place.hostname), int(place.port or 0))

    def memory_mb(self) -> float:
        """Resident memory of the API process and its children, without what they share with others."""
        total = 0
        for process in (self.api, *self.api.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total / 2**20


@contextlib.contextmanager
def running_server() -> Iterator[Server]:
    """A server before an engine whose tokens can be foretold."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{Path(folder) / 'engine'}"
        engine = [sys.executable, "-m", "benchmarks.event_loop_parts.engine", address]
        serve = [sys.executable, "-m", "jaxinfer", "serve", "demo", "--port", "0", "--engine-address", address]
        with started(engine, ROOT), started([*serve, "--drain-seconds", "0"], ROOT) as (process, said):
            url = next(word for word in said.split() if word.startswith("http"))
            children = psutil.Process(process).children()
            yield Server(url, next(child for child in children if "jaxinfer.processes.api" in child.cmdline()))


class Probe:
    """A process that measures answers of /healthz."""

    def __init__(self, target: Target):
        command = [sys.executable, "-m", "benchmarks.event_loop_parts.probe", target.host, str(target.port)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, cwd=ROOT
        )

    def lap(self) -> dict[str, float]:
        """Return the probe's times since the last lap."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        longest, p99, median, count = map(float, self._process.stdout.readline().split())
        return {"longest_ms": longest, "p99_ms": p99, "median_ms": median, "answers": count}

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()


class PeakMemory:
    """The most memory while it is entered."""

    def __init__(self, server: Server):
        self._server = server
        self.most = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._end.wait(0.1):
            self.most = max(self.most, self._server.memory_mb())

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()


async def neighbour(url: str, seconds: float) -> dict[str, Any]:
    """Streams for about so long: the tokens, and the longest time between two of them."""
    count = int(seconds / 0.02)
    body = {"prompt": PROMPT, "max_tokens": count, "ignore_eos": True, "seed": SEED, "stream": True}
    tokens: list[int] = []
    longest, last = 0.0, None
    asked = {**body, "return_token_ids": True}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/completions", json=asked) as response:
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            now = time.perf_counter()
            longest, last = max(longest, now - (last or now)), now
            tokens += json.loads(line[6:])["choices"][0].get("token_ids") or []
    if len(tokens) != count:
        raise RuntimeError(f"a stream of {count} tokens ended with {len(tokens)}")
    return {"tokens": tokens, "longest_gap_ms": 1000 * longest}


def _burn() -> None:
    while True:
        pass


@contextlib.contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keeps cores busy."""
    burners = [multiprocessing.Process(target=_burn, daemon=True) for _ in range(count)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()


async def measured(server: Server, probe: Probe, name: str, seconds: float, idle_mb: float) -> dict[str, Any]:
    """One attack, or none for `idle`. idle_mb: memory before the first."""
    probe.lap()
    with PeakMemory(server) as peak:
        watching = asyncio.create_task(neighbour(server.url, seconds))
        await asyncio.sleep(0.2)
        if name == "idle":
            with busy_cores(2):
                await asyncio.sleep(seconds)
            answers: Counter[int] = Counter()
        else:
            answers = await ATTACKS[name](server.target, seconds)
        told = await watching
    found = probe.lap()
    return {
        "attack": name,
        **found,
        "memory_mb": peak.most - idle_mb,
        "answers_by_status": {str(status): count for status, count in sorted(answers.items())},
        "neighbour": told,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each attack lasts")
    parser.add_argument("--only", metavar="TEXT", default="", help="attacks whose names have TEXT")
    options = parser.parse_args()
    raise_file_limit()
    rows: list[dict[str, Any]] = []
    undisturbed: list[int] = []
    with running_server() as server:
        probe, idle_mb = Probe(server.target), server.memory_mb()
        try:
            for name in ["idle", *(name for name in ATTACKS if options.only in name), "idle"]:
                rows.append(asyncio.run(measured(server, probe, name, options.seconds, idle_mb)))
                told = rows[-1]["neighbour"]
                undisturbed = undisturbed or told["tokens"]
                told["unchanged"] = told.pop("tokens") == undisturbed
                print(_described(rows[-1]), flush=True)
        finally:
            probe.close()
    idle = max(row["longest_ms"] for row in rows if row["attack"] == "idle")
    worst = max((row["longest_ms"] - idle for row in rows if row["attack"] != "idle"), default=0.0)
    memory = max(row["memory_mb"] for row in rows)
    kept = all(row["neighbour"]["unchanged"] for row in rows)
    met = worst <= MOST_STALL_MS and memory <= MOST_MEMORY_MB and kept
    write_json(options.json, {"idle_ms": idle, "worst_above_idle_ms": worst, "most_memory_mb": memory, "rows": rows})
    print(
        f"longest stall {worst:.0f} ms above idle's {idle:.0f} (at most {MOST_STALL_MS:.0f}), memory {memory:.0f} MB "
        f"above idle (at most {MOST_MEMORY_MB:.0f}), neighbours' streams {'unchanged' if kept else 'CHANGED'}: "
        + ("all as it should be" if met else "NOT as it should be")
    )


def _described(row: dict[str, Any]) -> str:
    told = row["neighbour"]
    return (
        f"{row['attack']:32} longest {row['longest_ms']:6.1f} ms, p99 {row['p99_ms']:5.1f}, memory "
        f"+{row['memory_mb']:4.0f} MB, answers {row['answers_by_status']}, neighbour "
        f"{'unchanged' if told['unchanged'] else 'CHANGED'} (longest gap {told['longest_gap_ms']:.0f} ms)"
    )


if __name__ == "__main__":
    main()
