"""The command line: a process a target, as many at once as there are cores; then the table and the exit status.

Each process tells what it has on its standard output; its errors go to a file, and are shown where it dies.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from jaxinfer_kernels.check.cases import CaseSource
from jaxinfer_kernels.check.record import Record
from jaxinfer_kernels.check.results import Result, from_json
from jaxinfer_kernels.check.table import progress, render
from jaxinfer_kernels.check.targets import FOLDER, Target, TargetError, read_target, target_names
from jaxinfer_kernels.check.worker import MARK, compile_target

_MOST_ERRORS = 3000


RECORDS = FOLDER.parent / "compiled"
"""Folder of the repository with the records of what compiled."""


def main(
    source: CaseSource,
    command: Sequence[str],
    *,
    description: str,
    record: Path | None = None,
    arguments: Sequence[str] | None = None,
    hosts: bool = False,
) -> int:
    """Runs the check over the cases of `source`; returns the exit status, 1 where one failed or none ran.

    command: what starts this program again, for the processes of the targets. record: file of what is known to
    compile. arguments: by default sys.argv's. hosts: programs are for all devices of a host, and by default for the
    targets of which hosts are known.
    """
    options = _parser(description, record).parse_args(arguments)
    if options.dump is not None:
        return _work(source, options, hosts)
    try:
        targets = _targets(options, hosts)
    except TargetError as error:
        print(error, file=sys.stderr)
        return 1
    with ThreadPoolExecutor(max(1, os.cpu_count() or 1)) as pool:
        parts = list(pool.map(partial(_compile_in_process, list(command), options), targets))
    results = [result for part in parts for result in part]
    if not results:
        known = sorted({case.program for target in targets for case in source(target, options.all)})
        print("\n  ".join([f"no case contains {options.only!r}; the programs are", *known]), file=sys.stderr)
        return 1
    print(render(results))
    if options.update_record:
        Record.read(options.record).write(options.record, results)
    if options.json:
        options.json.write_text(json.dumps([result._asdict() for result in results], indent=1) + "\n")
    return 1 if any(result.state == "failed" for result in results) else 0


def _parser(description: str, record: Path | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--targets", help="names, with commas between; by default all")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the targets; default: %(default)s")
    parser.add_argument("--all", action="store_true", help="all shapes, and not one of each kind")
    parser.add_argument("--only", default="", help="cases whose program and shape contain this text")
    parser.add_argument("--fresh", action="store_true", help="compile also what the record has")
    parser.add_argument("--record", type=Path, default=record, help="what compiled before; default: %(default)s")
    parser.add_argument("--update-record", action="store_true", help="write there what compiles now")
    parser.add_argument("--json", type=Path, help="file for the results, in bytes and seconds")
    parser.add_argument("--dump", type=Path, help=argparse.SUPPRESS)
    return parser


def _targets(options: argparse.Namespace, hosts: bool) -> list[Target]:
    if options.targets:
        named = [read_target(options.folder, name) for name in options.targets.split(",")]
        return [target.host() for target in named] if hosts else named
    every = [read_target(options.folder, name) for name in target_names(options.folder)]
    return [target.host() for target in every if target.host_topology] if hosts else every


def _work(source: CaseSource, options: argparse.Namespace, hosts: bool) -> int:
    """One of the processes."""
    try:
        (target,) = _targets(options, hosts)
        record = Record(()) if options.fresh or options.record is None else Record.read(options.record)
        compile_target(target, source, options.all, options.only, options.dump, record, sys.stdout)
    except TargetError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _compile_in_process(command: list[str], options: argparse.Namespace, target: Target) -> list[Result]:
    with tempfile.TemporaryDirectory() as name, (Path(name) / "errors").open("w+") as errors:
        dump = Path(name) / "dump"
        extra = ["--targets", target.name, "--folder", str(options.folder.resolve()), "--dump", str(dump)]
        extra += ["--only", options.only, *(["--all"] if options.all else [])]
        extra += ["--fresh"] if options.fresh or options.record is None else ["--record", str(options.record.resolve())]
        environment = os.environ | target.variables(dump)
        with subprocess.Popen(
            [*command, *extra], env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            messages = list(_messages(process.stdout or []))
        errors.seek(0)
        return collect(messages, target.name, process.returncode, errors.read())


def _messages(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield a process's messages and print the progress of each result. The compilers' own lines are left out."""
    for line in lines:
        if line.startswith(MARK):
            message = json.loads(line.removeprefix(MARK))
            if "result" in message:
                print(progress(from_json(message["result"])), file=sys.stderr, flush=True)
            yield message


def collect(messages: list[dict[str, Any]], target: str, status: int, errors: str) -> list[Result]:
    """Results of one process, those that it owes included."""
    results = [from_json(message["result"]) for message in messages if "result" in message]
    if any("done" in message for message in messages):
        return results
    told = f"the process ended with status {status}: {errors.strip()[-_MOST_ERRORS:] or 'it said nothing'}"
    had = {(result.program, result.shape) for result in results}
    missing = [tuple(case) for message in messages for case in message.get("planned", []) if tuple(case) not in had]
    # Cases run in the order of the plan: the first that is missing is the one that ended the process.
    for index, (program, shape) in enumerate(missing or [("every program", "")]):
        problem = "not reached: the process ended before" if index else told
        results.append(Result(target, program, shape, "failed", (problem,)))
    return results
