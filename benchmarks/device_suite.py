"""Measure in one command everything that needs a GPU or a TPU: on a GPU in less than nine minutes, on a TPU in at most
half an hour. Without either, the small CPU form runs through the same code.

Parts run in the order of their worth, each in a process of its own with a time limit, so that one that hangs or runs
out of memory ends alone; each writes its JSON as it goes, before the next begins. Nothing is downloaded: models are
created on the spot, with random weights.

    python benchmarks/device_suite.py [--out DIR] [--json FILE] [--parts a,b] [--minutes N]

The parts:
"""

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.device.forms import FORMS, Form, form_name
from benchmarks.device.parts import ENVIRONMENT, PARTS, Part
from benchmarks.device.table import headline, lines
from benchmarks.report import own_command, provenance, write_json

REPOSITORY = Path(__file__).resolve().parents[1]
_BUDGETS = {"gpu": 530, "tpu": 1800, "cpu": 530}
"""Seconds for everything, by platform. That for a TPU is a guess."""
_LEAST_SECONDS = 15
_WRITING_SECONDS = 30
_KERNELS = REPOSITORY / "kernels"


class Suite(NamedTuple):
    """One run: its form, where its files go, and when it must be done (seconds since the epoch).

    hardware: the devices, once a part has told of them: others need not take them to write them down. acceptance: of
    drafts.
    """

    form: Form
    out: Path
    work: Path
    deadline: float
    hardware: dict[str, Any] | None = None
    acceptance: float = 0.8

    def run(self, part: Part) -> dict[str, Any]:
        """Run a part and return its results and the way it ended: `done`, `failed`, `out of time`."""
        file = self.out / f"{part.name}.json"
        file.unlink(missing_ok=True)
        began = time.time()
        deadline = min(self.deadline, began + part.seconds * self.form.patience)
        with (self.out / f"{part.name}.log").open("w") as log, _held_back(signal.SIGTERM) as go_on:
            process = subprocess.Popen(
                self._command(part, file, began, deadline),
                cwd=self.work,
                env=self._environment(part),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            ended = _wait(process, deadline - time.time(), go_on)
        result = json.loads(file.read_text()) if file.exists() else {}
        return {**result, "ended": ended, "wall_seconds": round(time.time() - began, 1)}

    def _command(self, part: Part, file: Path, began: float, deadline: float) -> list[str]:
        flags = {
            "--form": self.form.name,
            "--work": self.work,
            "--file": file,
            "--began": began,
            "--deadline": deadline,
            "--acceptance": self.acceptance,
        }
        pairs = [str(text) for pair in flags.items() for text in pair]
        pairs += ["--hardware", json.dumps(self.hardware)] if self.hardware else []
        return [sys.executable, "-m", "benchmarks.device.run", part.name, *pairs, "--suite", own_command()]

    def _environment(self, part: Part) -> dict[str, str]:
        """jaxinfer from this checkout, installed or not; what the part adds to XLA's flags; no network for peers.

        Without HF_HUB_OFFLINE transformers looks for attention kernels on the hub, and waits where there is no network.
        """
        paths = [str(REPOSITORY), str(_KERNELS), os.environ.get("PYTHONPATH", "")]
        flags = f"{os.environ.get('XLA_FLAGS', '')} {part.flags}".strip()
        set_here = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "XLA_FLAGS": flags, "HF_HUB_OFFLINE": "1"}
        return {**os.environ, **set_here}


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that a part under way is ended too
    asked = _arguments()
    asked.out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="device-suite-") as work:
        began = time.time()
        suite = Suite(FORMS["tiny"], asked.out.resolve(), Path(work), began + min(_BUDGETS.values()))
        suite = suite._replace(acceptance=asked.synthetic_acceptance)
        print(f"{ENVIRONMENT.name:16} {ENVIRONMENT.what} ...", flush=True)
        environment = suite.run(ENVIRONMENT)
        if message := _unusable(environment, asked.form):
            print(message, file=sys.stderr)
            return 1
        suite = _in_form(suite, asked.form, environment)
        asked.budget = asked.budget or _BUDGETS[suite.form.platform]
        suite = suite._replace(deadline=began + asked.budget)
        print(_opening(environment, suite, asked), flush=True)
        results = {"environment": environment, **_run_parts(suite, asked.parts, environment)}
    _write(asked, suite.form.name, results)
    print()
    for line in lines(results):
        print(line)
    print(headline(results))
    asked_for = [result for name, result in results.items() if "skipped" not in result and name != "environment"]
    return 0 if all(result["ended"] == "done" for result in asked_for) else 1


def _in_form(suite: Suite, asked: str | None, environment: dict[str, Any]) -> Suite:
    """The suite in the form asked for, or the device's; the environment's file, too, which came before it was known."""
    form = FORMS[asked or form_name(environment["backend"], environment["memory"])]
    suite = suite._replace(form=form, hardware=environment["provenance"]["hardware"])
    environment["form"] = form.name
    (suite.out / f"{ENVIRONMENT.name}.json").write_text(json.dumps(environment, indent=1) + "\n")
    return suite


def _run_parts(suite: Suite, parts: Iterable[Part], environment: dict[str, Any]) -> dict[str, dict[str, Any]]:
    results: dict[str, dict[str, Any]] = {}
    for part in parts:
        reason = reason_to_skip(part, suite.form, environment["peers"])
        if reason is None and suite.deadline - time.time() < _LEAST_SECONDS:
            reason = "no time is left"
        if reason is not None:
            results[part.name] = {"ended": "skipped", "skipped": reason}
        else:
            print(f"{part.name:16} {part.what} ...", flush=True)
            results[part.name] = suite.run(part)
        result = results[part.name]
        print(
            f"{part.name:16} {result.get('skipped') or result['ended']:24} {result.get('wall_seconds', 0):6} s",
            flush=True,
        )
        if result["ended"] == "failed":
            print(_last_lines(suite.out / f"{part.name}.log"), flush=True)
    return results


def reason_to_skip(part: Part, form: Form, installed: Mapping[str, bool]) -> str | None:
    """Why the part cannot run in this form with these packages; None where it can."""
    if form.platform in part.not_on:
        return part.not_on[form.platform]
    absent = [name for name in part.needs if not installed.get(name)]
    return f"{', '.join(absent)} is not installed" if absent else None


@contextlib.contextmanager
def _held_back(number: signal.Signals) -> Iterator[Callable[[], None]]:
    """Hold a signal back until what is given is called: a process that was just started is known by then."""
    seen, before = list[int](), signal.signal(number, lambda *_: seen.append(1))

    def go_on() -> None:
        signal.signal(number, before)
        if seen:
            signal.raise_signal(number)

    try:
        yield go_on
    finally:
        signal.signal(number, before)


def _wait(process: subprocess.Popen[bytes], seconds: float, begun: Callable[[], None]) -> str:
    """Waits for a part, and ends it with all that it started when its time is up. begun: is called first."""
    try:
        begun()
        return "done" if process.wait(max(seconds, 1)) == 0 else "failed"
    except subprocess.TimeoutExpired:
        return "out of time"
    finally:
        with contextlib.suppress(ProcessLookupError):  # where it left nothing behind
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _unusable(environment: dict[str, Any], form: str | None) -> str | None:
    """Why nothing can be measured here, or None."""
    missing = environment.get("missing")
    if missing is None:
        return f"the check of what is installed {environment['ended']}; see environment.log"
    if missing:
        errors = "\n".join(f"  {name}: {error}" for name, error in missing.items())
        return f"jaxinfer needs packages that cannot be imported here:\n{errors}"
    wanted, found = FORMS[form].platform if form else "cpu", environment["backend"]
    if wanted not in ("cpu", found):
        return f"--form {form}: JAX finds no {wanted.upper()} here, its backend is {found}"
    return None


def _opening(environment: dict[str, Any], suite: Suite, asked: argparse.Namespace) -> str:
    minutes = f"up to {math.ceil(asked.budget / 60)} minutes"
    if asked.form is None and suite.form.name == "cpu":
        begin = (
            f"No GPU or TPU was found: the small CPU form runs, which shows that the suite works here, in {minutes}.\n"
        )
    else:
        begin = f"It takes {minutes}.\n"
    devices = environment["provenance"]["hardware"]["devices"]
    absent = [name for name, there in environment["peers"].items() if not there]
    peers = f"; not installed and so left out: {', '.join(absent)}" if absent else ""
    return f"{begin}form {suite.form.name} on {', '.join(sorted(set(devices)))}; results in {suite.out}{peers}"


def _write(asked: argparse.Namespace, form: str, results: dict[str, Any]) -> None:
    summary = {"form": form, "headline": headline(results), "table": list(lines(results)), "parts": results}
    where = {**provenance(), "hardware": results["environment"]["provenance"]["hardware"]}
    for file in filter(None, (str(asked.out / "summary.json"), asked.json)):
        write_json(file, summary, where)


def _last_lines(log: Path) -> str:
    return "\n".join(f"    {line}" for line in log.read_text(errors="replace").splitlines()[-12:])


def _arguments() -> argparse.Namespace:
    names = "\n".join(f"  {part.name:16} {part.what} (at most {part.seconds} s on a GPU)" for part in PARTS)
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\n{names}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("device-suite-results"), metavar="DIR", help="a JSON and a log a part"
    )
    parser.add_argument("--json", metavar="FILE", help="everything in one file, too")
    parser.add_argument("--parts", type=_parts, default=PARTS, metavar="a,b", help="only these, in this order")
    budget = "for everything; by default 530 s, on a TPU 1800"
    parser.add_argument("--budget", type=float, metavar="SECONDS", help=budget)
    parser.add_argument("--minutes", type=float, help="the same in minutes, less half a one to write results")
    parser.add_argument(
        "--synthetic-acceptance",
        type=float,
        default=0.8,
        metavar="RATE",
        help="how often a draft is kept whose predecessors are, in the parts `drafts-*`: weights are random (0.8)",
    )
    parser.add_argument("--form", choices=list(FORMS), help="sizes; by default the device's")
    asked = parser.parse_args()
    if asked.minutes is not None:
        if asked.budget is not None or asked.minutes < 1:
            parser.error("--minutes: must be at least 1, and not beside --budget")
        asked.budget = 60 * asked.minutes - _WRITING_SECONDS
    return asked


def _parts(text: str) -> tuple[Part, ...]:
    by_name = {part.name: part for part in PARTS}
    unknown = [name for name in text.split(",") if name not in by_name]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is unknown; known are {', '.join(by_name)}")
    return tuple(by_name[name] for name in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
