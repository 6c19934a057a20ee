"""Measure the throughput of constrained and plain streams next to each other: HTTP, SSE and two processes."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.overlap import processor_seconds, running_server
from benchmarks.stream_client import Streams, count_streams

STREAMS = 64
PLAIN: dict[str, Any] = {"prompt": list(range(40, 72)), "max_tokens": 3000, "ignore_eos": True, "temperature": 1.0}
"""More tokens than come while they are counted."""


def schema(number: int) -> dict[str, Any]:
    """One of its own, of texts that do not end soon."""
    fields = {f"field_{number}_{i}": {"type": "string"} for i in range(5)} | {"n": {"type": "integer"}}
    items = {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
    return {"type": "array", "items": items, "minItems": 500}


def constrained(number: int) -> dict[str, Any]:
    """A request with a schema of its own."""
    return {**PLAIN, "structured_outputs": {"json": schema(number)}}


def server_shares(tokenizer: Path, step_seconds: float, rounds: int, seconds: float) -> dict[str, Any]:
    """Tokens a second of all streams plain, all constrained, and half and half, in turns."""
    kinds = {
        "plain": [PLAIN] * STREAMS,
        "constrained": [constrained(number) for number in range(STREAMS)],
        "half": [PLAIN if number % 2 else constrained(number) for number in range(STREAMS)],
    }
    engine = ["benchmarks.structured_parts.engine", str(tokenizer), str(STREAMS), str(step_seconds)]
    rows: list[dict[str, Any]] = []
    with running_server(engine, ["--tokenizer", str(tokenizer.parent)]) as (url, processes):
        for name in [*kinds] * rounds:
            before = {each: processor_seconds(process) for each, process in processes.items()}
            found = asyncio.run(count_streams(f"{url}/v1/completions", kinds[name], settle=1.0, seconds=seconds))
            spent = {each: processor_seconds(process) - before[each] for each, process in processes.items()}
            busy = {each: round(value / (1.0 + seconds), 3) for each, value in spent.items()}
            rows.append({"kind": name, **_rates(found), "busy": busy})
            told = f"{name:11} {rows[-1]['all']:7.1f} tokens/s, odd streams {rows[-1]['odd']:7.1f}; of a core: {busy}"
            print(told, flush=True)
    return {"streams": STREAMS, "turns": rows, **_shares(rows)}


def _rates(found: list[Streams]) -> dict[str, float]:
    """Tokens a second: of all streams, and of those with odd numbers, which are plain where half of all are."""
    rates = [stream.events / stream.seconds for stream in found]
    return {"all": sum(rates), "odd": sum(rates[1::2])}


def _shares(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return, as shares of the turn's plain streams, throughputs of constrained ones and of plain ones next to them."""
    plain, bound, half = ([row for row in rows if row["kind"] == kind] for kind in ("plain", "constrained", "half"))
    return {
        "structured_share": _spread(one["all"] / other["all"] for one, other in zip(bound, plain, strict=True)),
        "plain_beside": _spread(one["odd"] / other["odd"] for one, other in zip(half, plain, strict=True)),
    }


def _spread(values: Iterator[float]) -> dict[str, float]:
    found = sorted(values)
    return {"median": round(median(found), 4), "lowest": round(found[0], 4), "highest": round(found[-1], 4)}
