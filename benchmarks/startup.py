"""Start-up of `jaxinfer serve`: from the start of the process until /readyz answers 200, by part, and memory then.

Cold: with an empty compile cache; warm: with what a cold run left there (and with files that the system has read
before). Parts are those that the engine tells in its log; `rest` is Python's start, the imports of the command, other
processes and the HTTP server. Memory is what all processes of the server hold once it is ready (Linux's PSS), beside
the size of weights in their files and the most that KV blocks can take, which hold nothing before they are written.

    python benchmarks/startup.py [--json FILE] [--cold N] [--warm N] [-- FLAGS OF serve]

Without arguments: the demo model as `jaxinfer serve` serves it, one cold run and three warm ones, in a minute or two.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.memory import shared_out
from benchmarks.peers.engines import REPOSITORY, free_port
from benchmarks.report import provenance, write_json

_POLL_SECONDS = 0.02
_START_SECONDS = 900
_END_SECONDS = 30
_TOLD = re.compile(r"engine built in [\d.]+ s: (.*)")
_PART = re.compile(r"(\w+) ([\d.]+)")
_TOLD_MEMORY = {
    "weight_files": re.compile(r"loading weights: ([\d,]+) MiB"),
    "kv_at_most": re.compile(r"KV blocks take ([\d,]+) MiB"),
}


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds until a server is ready, `total`, and of its parts; MiB that it holds then, and sizes that it told."""

    seconds: dict[str, float]
    mib: dict[str, float]


def start_once(cache: Path, flags: Sequence[str], log: Path) -> Start:
    """Starts a server, waits until it is ready, and ends it.

    Raises RuntimeError, with the log's end, where it is never ready.
    """
    port = free_port()
    command = [sys.executable, "-m", "jaxinfer", "serve", *flags, "--port", str(port), "--log-level", "info"]
    paths = [str(REPOSITORY), str(REPOSITORY / "kernels"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with log.open("w") as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            [*command, "--compile-cache-dir", str(cache)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            ready = _is_ready(process, f"http://127.0.0.1:{port}/readyz")
            total = time.perf_counter() - start
            held = shared_out(process.pid) if ready else 0.0
        finally:
            _end(process)
    told = log.read_text(errors="replace")
    found = _TOLD.search(told)
    if not ready or found is None:
        raise RuntimeError("the server did not tell that it is ready:\n" + "\n".join(told.splitlines()[-15:]))
    parts = {name: float(seconds) for name, seconds in _PART.findall(found.group(1))}
    seconds = {"total": round(total, 3), **parts, "rest": round(total - sum(parts.values()), 3)}
    sizes = {name: told_size.search(told) for name, told_size in _TOLD_MEMORY.items()}
    mib = {name: float(size[1].replace(",", "")) for name, size in sizes.items() if size is not None}
    return Start(seconds, {"resident": float(round(held)), **mib})


def summary(runs: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Median, lowest and highest of every part."""
    values = {part: [run[part] for run in runs] for part in runs[0]}
    return {part: {"median": median(all_), "low": min(all_), "high": max(all_)} for part, all_ in values.items()}


def main() -> None:
    asked = _arguments()
    starts: dict[str, list[Start]] = {"cold": [], "warm": []}
    for form, folder, work in _starts(asked):
        starts[form].append(start_once(folder, asked.flags, work / "log"))
        print(f"{form}: ready after {starts[form][-1].seconds['total']:.1f} s", flush=True)
    found = {form: summary([each.seconds for each in of]) for form, of in starts.items() if of}
    memory = {form: summary([each.mib for each in of]) for form, of in starts.items() if of}
    _print("seconds", found)
    _print("MiB", memory)
    runs = {form: [asdict(each) for each in of] for form, of in starts.items()}
    result = {"flags": asked.flags, "seconds": found, "mib": memory, "runs": runs}
    write_json(asked.json, result, provenance(packages=("aiohttp",)))
    print(
        "ready after " + ", ".join(f"{of['total']['median']:.1f} s {form}" for form, of in found.items()) + " (median)"
    )


def _starts(asked: argparse.Namespace) -> Any:
    """(form, folder of the cache, folder for the log) of each run; warm ones use what the last cold one left."""
    with TemporaryDirectory(prefix="startup-") as work:
        for number in range(asked.cold):
            yield "cold", Path(work) / f"cache-{number}", Path(work)
        for _ in range(asked.warm):
            yield "warm", Path(work) / f"cache-{asked.cold - 1}", Path(work)


def _is_ready(process: subprocess.Popen[bytes], url: str) -> bool:
    """Waits until the server says so; False where it ends or takes too long."""
    end = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(_POLL_SECONDS)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """Asks first, so that the server ends its own processes."""
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _print(unit: str, found: dict[str, dict[str, dict[str, float]]]) -> None:
    print(f"{unit:12}" + "".join(f"{form:>24}" for form in found))
    for part in next(iter(found.values())):
        cells = (of[part] for of in found.values())
        print(f"{part:12}" + "".join(f"{c['median']:9.2f} ({c['low']:.2f}-{c['high']:.2f})".rjust(24) for c in cells))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the runs there")
    parser.add_argument("--cold", type=int, default=1, metavar="N", help="runs with an empty compile cache, at least 1")
    parser.add_argument("--warm", type=int, default=3, metavar="N", help="runs after them")
    parser.add_argument("flags", nargs="*", default=["demo"], help="model and flags of serve, after --")
    asked = parser.parse_args()
    if asked.cold < 1:
        parser.error("--cold: must be at least 1, since warm runs use what it leaves")
    return asked


if __name__ == "__main__":
    main()
