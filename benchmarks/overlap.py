"""Measure how much of a device's time an engine, and a whole server, can use, as shares of what a bare loop uses.

The device is simulated: its steps take a set time, whatever drives it. `engine_share`: the engine alone, 256 requests,
steps of 5 ms. `server_share`: HTTP, SSE and two processes, 256 streams of chats, steps of 20 ms, with the client on the
same cores. The bare loop runs in the same minute, before and after.

    python benchmarks/overlap.py [--json FILE] [--rounds N]
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from benchmarks.overlap_parts.device import bare_rate, engine_rate, fill, make_core
from benchmarks.report import write_json
from benchmarks.stream_client import count_events

ROWS = 256
ENGINE_STEP, SERVER_STEP = 0.005, 0.020
BODY = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Count for as long as you can."}],
    "max_tokens": 3000,  # more than come while they are counted
    "ignore_eos": True,
}


def engine_share(steps: int) -> dict[str, float]:
    """Tokens a second of the bare loop, of the engine with overlap and without, and the engine's share."""
    core = make_core(ROWS, ENGINE_STEP, 32_000)
    fill(core, ROWS)
    engine = engine_rate(core, steps)
    core.steps_ahead = 0
    core.step()  # reads the step that was ahead
    serial = engine_rate(core, steps)
    bare = bare_rate(core, steps)
    core.abort_all()
    core.close()
    return {"bare": bare, "engine": engine, "without_overlap": serial, "share": engine / bare}


def server_share(seconds: float) -> dict[str, Any]:
    """Tokens a second of the bare loop and of the server's streams, its share, and the processor time a token."""
    core = make_core(ROWS, SERVER_STEP, 32_000)
    fill(core, ROWS)
    bare = bare_rate(core, int(seconds / SERVER_STEP))
    core.abort_all()
    core.close()
    engine = ["benchmarks.overlap_parts.engine", str(ROWS), str(SERVER_STEP)]
    with running_server(engine) as (url, processes):
        before = {name: processor_seconds(process) for name, process in processes.items()}
        found = asyncio.run(count_events(f"{url}/v1/chat/completions", BODY, ROWS, settle=1.0, seconds=seconds))
        # The time of start and end is a small part of it, and in favour of nobody.
        spent = {name: processor_seconds(process) - before[name] for name, process in processes.items()}
    rate = found.events / found.seconds
    whole = 1.0 + found.seconds
    return {
        "bare": bare,
        "server": rate,
        "share": rate / bare,
        "busy": {name: round(value / whole, 3) for name, value in spent.items()},
    }


@contextmanager
def running_server(engine: Sequence[str], flags: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, psutil.Process]]]:
    """A server before a simulated engine: its URL, and the processes whose time is counted.

    engine: the engine's module, and its arguments after the address. flags: of `serve demo`.
    """
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{Path(folder) / 'engine'}"
        module, *arguments = engine
        drive = [sys.executable, "-m", module, address, *arguments]
        serve = [sys.executable, "-m", "jaxinfer", "serve", "demo", "--port", "0", "--engine-address", address, *flags]
        root = Path(__file__).parents[1]
        with started(drive, root) as (driver, _), started([*serve, "--drain-seconds", "0"], root) as (server, said):
            url = next(word for word in said.split() if word.startswith("http"))
            api = next(
                child for child in psutil.Process(server).children() if "jaxinfer.processes.api" in child.cmdline()
            )
            yield url, {"engine": psutil.Process(driver), "api": api, "client": psutil.Process()}


@contextmanager
def started(command: list[str], folder: Path) -> Iterator[tuple[int, str]]:
    """A process that has printed its first line: its id, and the line."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if not said:
            raise RuntimeError(f"{command[2]} did not start")
        yield process.pid, said
    finally:
        process.terminate()
        process.communicate(timeout=30)


def processor_seconds(process: psutil.Process) -> float:
    """Return a process's CPU time so far, user and system."""
    times = process.cpu_times()
    return times.user + times.system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--rounds", type=int, default=3, help="times that both are measured, in turns")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds that streams are counted")
    options = parser.parse_args()
    engine, server = [], []
    for _ in range(options.rounds):
        engine.append(engine_share(int(options.seconds / ENGINE_STEP)))
        print(
            f"engine: {_described(engine[-1], 'engine')}, without overlap {engine[-1]['without_overlap']:.0f}",
            flush=True,
        )
        server.append(server_share(options.seconds))
        busy = ", ".join(f"{name} {value:.0%}" for name, value in server[-1]["busy"].items())
        print(f"server: {_described(server[-1], 'server')}; of a core: {busy}", flush=True)
    shares = {name: [row["share"] for row in rows] for name, rows in (("engine", engine), ("server", server))}
    write_json(options.json, {"rows": ROWS, "engine": engine, "server": server})
    print(
        f"engine_share {median(shares['engine']):.1%} ({min(shares['engine']):.1%}-{max(shares['engine']):.1%}), "
        f"server_share {median(shares['server']):.1%} ({min(shares['server']):.1%}-{max(shares['server']):.1%})"
    )


def _described(row: dict[str, Any], name: str) -> str:
    return f"{row[name]:.0f} of {row['bare']:.0f} tokens/s, {row['share']:.1%}"


if __name__ == "__main__":
    main()
