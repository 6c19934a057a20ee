"""jaxinfer's server beside others on one machine: same model files, same client, in turns within one run.

Engines, each in an environment of its own: `jaxinfer serve` (bf16 wants jax 0.11 or later), transformers' continuous
batching behind a thin wrapper (see peers/transformers_server.py), llama.cpp's server. The others wait
while one is measured. After two short requests each case runs `--repeats` times with other prompts; medians are shown.

    python benchmarks/cpu_peers.py --full --transformers-python PATH --llama-server PATH [--json FILE]

Without arguments: the small form, with a tiny model and jaxinfer alone, in about a minute. Models are made on the spot
in --work (the package `gguf` writes llama.cpp's); `stories` needs --stories FOLDER and --stories-gguf FILE.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any, NamedTuple

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.peers.cases import FULL, SMALL, Case
from benchmarks.peers.client import run_asks
from benchmarks.peers.engines import INTEGERS, Engine, Server, free_port, own_python
from benchmarks.peers.models import QWEN3_06B, SMOLLM2_135M, TINY, make_folder, make_gguf
from benchmarks.report import provenance, write_json

_SLOTS = {"smollm2": 32, "qwen3": 4, "stories": 32}
_LENGTH = 2304
"""Tokens a request may have in llama.cpp, which divides its context between its slots."""
_GGUF = {"bfloat16": "bf16", "float32": "f32", "int8": "q8_0", "int4": "q4_0"}


class Place(NamedTuple):
    """Paths of a model's files; gguf by dtype."""

    folder: Path
    gguf: dict[str, Path]
    vocabulary: int


def main() -> None:
    asked = _arguments()
    cases = [case for case in (FULL if asked.full else SMALL) if not asked.cases or case.name in asked.cases]
    engines = _engines(asked)
    versions = {engine.label: engine.versions() for engine in engines}
    rows: dict[tuple[str, str], list[dict[str, float]]] = {}
    starts: dict[str, Any] = {}
    for model in dict.fromkeys(case.model for case in cases):
        place = _place(model, asked, engines)
        if place is None:
            print(f"{model}: left out, --stories is not given")
            continue
        servers = _start(engines, place, asked.work, starts, _SLOTS[model])
        try:
            for _ in _measured([case for case in cases if case.model == model], servers, place, asked.repeats, rows):
                found = {"rows": _table(rows), "starts": starts, "repeats": asked.repeats, "slots": _SLOTS}
                write_json(asked.json, {**found, "engines": versions}, provenance(packages=("uvloop", "aiohttp")))
        finally:
            for server in servers:
                server.stop()
    print(_headline(_table(rows)))


def _measured(
    cases: list[Case], servers: list[Server], place: Place, repeats: int, rows: dict[tuple[str, str], Any]
) -> Iterator[Case]:
    """Adds what each server does in each case to `rows`, and yields a case when all have done it."""
    for server in servers:
        _run(replace(cases[0], requests=2, at_once=2, outputs=(4, 4)), server, place, -1)
    print(f"{cases[0].model}: {len(servers)} servers are ready", flush=True)
    for case in cases:
        for repeat in range(repeats):
            for server in servers:
                result = _run(case, server, place, repeat)
                rows.setdefault((case.name, server.engine.label), []).append(result)
        for server in servers:
            row = _row(case.name, server.engine.label, rows[case.name, server.engine.label])
            low, high = row["low_high"]
            speed = f"{row['output_tokens_per_s']:8.1f} tok/s ({low:.0f}-{high:.0f})"
            print(f"{case.name:14} {server.engine.label:24} {speed}  TTFT {row['ttft_ms']:.0f} ms", flush=True)
        yield case


def _table(rows: dict[tuple[str, str], list[dict[str, float]]]) -> list[dict[str, Any]]:
    return [_row(case, label, runs) for (case, label), runs in rows.items()]


def _run(case: Case, server: Server, place: Place, repeat: int) -> dict[str, float]:
    try:
        return asyncio.run(run_asks(server.url, str(place.folder), case.asks(place.vocabulary, repeat), case.at_once))
    except* aiohttp.ClientError as errors:
        raise RuntimeError(f"{server.engine.label}, {case.name}: {errors.exceptions[0]!r}") from errors


def _start(engines: list[Engine], place: Place, work: Path, starts: dict[str, Any], slots: int) -> list[Server]:
    """One after the other, so that each has the machine while it compiles."""
    servers: list[Server] = []
    try:
        for engine in engines:
            if engine.name == "llama.cpp" and engine.dtype not in place.gguf:
                continue
            port = free_port()
            command = engine.command(place.folder, place.gguf.get(engine.dtype), port, slots, _LENGTH)
            servers.append(Server(engine, command, port, work / f"{place.folder.name}-{engine.label}.log"))
            starts[f"{place.folder.name}, {engine.label}"] = {"seconds": round(servers[-1].wait(), 1)}
    except BaseException:
        for server in servers:
            server.stop()
        raise
    return servers


def _place(model: str, asked: argparse.Namespace, engines: list[Engine]) -> Place | None:
    if model == "stories":
        gguf = {"float32": asked.stories_gguf} if asked.stories_gguf else {}
        return Place(asked.stories, gguf, 512) if asked.stories else None
    names = {"smollm2": ("smollm2-135m-random", SMOLLM2_135M), "qwen3": ("qwen3-0.6b-random", QWEN3_06B)}
    name, config = names[model] if asked.full else ("tiny-random", TINY)
    folder = make_folder(asked.work / name, config)
    kinds = [engine.dtype for engine in engines if engine.name == "llama.cpp"]
    return Place(folder, {kind: make_gguf(folder, _GGUF[kind]) for kind in kinds}, config["vocab_size"])


def _engines(asked: argparse.Namespace) -> list[Engine]:
    programs = {"jaxinfer": asked.python, "transformers": asked.transformers_python, "llama.cpp": asked.llama_server}
    every = [Engine(name, dtype, program) for name, program in programs.items() if program for dtype in asked.dtypes]
    able = [engine for engine in every if engine.name != "transformers" or engine.dtype not in INTEGERS]
    return [engine for engine in able if not asked.engines or engine.label in asked.engines]


def _row(case: str, label: str, runs: list[dict[str, float]]) -> dict[str, Any]:
    speeds = [run["output_tokens_per_s"] for run in runs]
    middle = {name: round(median(run[name] for run in runs), 2) for name in runs[0]}
    return {
        "case": case,
        "engine": label,
        **middle,
        "low_high": [min(speeds), max(speeds)],
        "runs": speeds,
    }


def _headline(table: list[dict[str, Any]]) -> str:
    """Compare, for each case, jaxinfer's best type with the best of each other engine."""
    parts = []
    for case in dict.fromkeys(row["case"] for row in table):
        best: dict[str, float] = {}
        for row in table:
            if row["case"] == case:
                name = row["engine"].split()[0]
                best[name] = max(best.get(name, 0.0), row["output_tokens_per_s"])
        parts.append(f"{case}: " + ", ".join(f"{name} {speed:.0f}" for name, speed in best.items()))
    return "output tokens/s, best type of each - " + "; ".join(parts)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the shapes of SmolLM2-135M and Qwen3-0.6B, all cases")
    parser.add_argument("--python", default=own_python(), metavar="PATH", help="Python that runs jaxinfer")
    parser.add_argument("--transformers-python", metavar="PATH", help="Python that has torch, transformers, aiohttp")
    parser.add_argument("--llama-server", metavar="PATH", help="llama.cpp's server")
    parser.add_argument("--stories", type=Path, metavar="FOLDER", help="stories260K in Hugging Face layout")
    parser.add_argument("--stories-gguf", type=Path, metavar="FILE", help="the same in GGUF, f32")
    parser.add_argument(
        "--dtypes", type=lambda text: text.split(","), default=["float32"], help="float32,bfloat16,int8,int4"
    )
    parser.add_argument("--engines", type=lambda text: text.split(","), help="only these, as `jaxinfer float32`")
    parser.add_argument("--cases", type=lambda text: text.split(","), help="only these, by name")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", type=Path, help="folder for models and logs, kept")
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    asked = parser.parse_args()
    asked.work = asked.work or Path(mkdtemp(prefix="cpu-peers-"))
    asked.work.mkdir(parents=True, exist_ok=True)
    return asked


if __name__ == "__main__":
    main()
