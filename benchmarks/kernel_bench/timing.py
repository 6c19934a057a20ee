"""Chained programs, timed in turns."""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, NamedTuple

from benchmarks.device.counts import Work

_LEAST_RUNS = 3


class Chain(NamedTuple):
    """A program that makes `calls` calls of a kernel one after the other in one dispatch.

    run: takes the state that the run before gave (pages are donated) and gives the next, when all is done.
    """

    run: Callable[[Any], Any]
    state: Any
    calls: int


class Ceilings(NamedTuple):
    """Rates a second that the device reached in this run: bytes that a copy reads and writes, FLOPs of a product."""

    bytes: float
    flops: float

    def seconds(self, work: Work) -> float:
        """Return the least time of `work`, with copies and products overlapped."""
        return max(work.bytes / self.bytes, work.flops / self.flops)


def time_in_turns(
    makers: Mapping[str, Callable[[], Chain]], runs: int, most_seconds: float = float("inf")
) -> dict[str, list[float] | str]:
    """Seconds a call, an entry a run, of each chain; for one that raises, its error.

    All are built and run twice first, then each runs once in every round: what else the machine does meets them all.
    After `most_seconds` of rounds only three are made.
    """
    found: dict[str, list[float] | str] = {}
    chains: dict[str, Chain] = {}
    for name, make in makers.items():
        try:
            chain = make()
            chains[name] = chain._replace(state=chain.run(chain.run(chain.state)))
            found[name] = []
        except Exception as error:  # whatever a backend does wrong is to be told, and the others go on
            found[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    began = time.perf_counter()
    for done in range(runs):
        if done >= _LEAST_RUNS and time.perf_counter() - began > most_seconds:
            break
        for name, chain in chains.items():
            start = time.perf_counter()
            state = chain.run(chain.state)
            seconds = found[name]
            assert isinstance(seconds, list)
            seconds.append((time.perf_counter() - start) / chain.calls)
            chains[name] = chain._replace(state=state)
    return found


def figures(seconds: list[float], work: Work) -> dict[str, Any]:
    """The median call: microseconds, and rates."""
    middle = median(seconds)
    return {
        "bytes": work.bytes,
        "flops": work.flops,
        "runs": len(seconds),
        "us": round(1e6 * middle, 2),
        "us_low_high": [round(1e6 * min(seconds), 2), round(1e6 * max(seconds), 2)],
        "gb_per_s": round(work.bytes / middle / 1e9, 3),
        "tflops": round(work.flops / middle / 1e12, 5),
    }


def with_shares(row: dict[str, Any], ceilings: Ceilings) -> dict[str, Any]:
    """A row with its shares of what the device copies, multiplies, and both at once; unchanged where it has no time."""
    if "us" not in row:
        return row
    work, seconds = Work(row["bytes"], row["flops"]), row["us"] * 1e-6
    return {
        **row,
        "copy_share": round(work.bytes / seconds / ceilings.bytes, 4),
        "matmul_share": round(work.flops / seconds / ceilings.flops, 4),
        "roof_share": round(ceilings.seconds(work) / seconds, 4),
    }
