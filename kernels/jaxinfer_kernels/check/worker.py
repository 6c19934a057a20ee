"""The process that compiles for one target; it writes a line of JSON for each case."""

import json
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from jaxinfer_kernels.check.cases import Case, CaseSource
from jaxinfer_kernels.check.ptx import GpuKernels, find_ptxas
from jaxinfer_kernels.check.record import Record, digest_of, stable_text
from jaxinfer_kernels.check.results import Result, failure, inspect
from jaxinfer_kernels.check.targets import Target

MARK = "check: "
"""Prefix of a line for the parent process."""

_LONGEST_ERROR = 2000


def compile_target(
    target: Target, source: CaseSource, everything: bool, only: str, dump: Path, record: Record, out: TextIO
) -> None:
    """Compiles the cases whose name contains `only` and that `record` does not have, one after the other.

    First comes a list of all that will be compiled, so that a process which dies leaves none unmentioned.
    """
    stable_text()
    cases = [case for case in source(target, everything) if only in f"{case.program} {case.shape}"]
    _write(out, {"planned": [[case.program, case.shape] for case in cases]})
    devices = cache(Target.devices)
    ptxas = find_ptxas()
    kernels = GpuKernels(ptxas) if ptxas else None
    for case in cases:
        own = target.on(case.topology) if case.topology else target
        _write(out, {"result": _compile(case, own, devices, dump, record, kernels)._asdict()})
    _write(out, {"done": True})


def _compile(
    case: Case,
    target: Target,
    devices: Callable[[Target], list[Any]],
    dump: Path,
    record: Record,
    kernels: GpuKernels | None,
) -> Result:
    """devices: of a target. Raises TargetError where there is no compiler for it."""
    if case.cannot:
        return Result(target.name, case.program, case.shape, "not compiled", (case.cannot,))
    shutil.rmtree(dump, ignore_errors=True)
    dump.mkdir(parents=True)
    found = devices(target)
    start = time.perf_counter()
    try:
        lowering = case.lower(found)
        digest = digest_of(case, target, lowering)
        if (known := record.find(target.name, case, digest)) is not None:
            return known
        executable = lowering.compile()
        result = inspect(case, target, executable, time.perf_counter() - start, dump, kernels)
        return result._replace(digest=digest)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
        return failure(case, target.name, told, time.perf_counter() - start)


def _write(out: TextIO, message: dict[str, Any]) -> None:
    out.write(f"{MARK}{json.dumps(message)}\n")
    out.flush()
