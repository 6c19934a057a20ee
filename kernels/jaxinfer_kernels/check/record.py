"""Record: a committed file of what compiled without a fault, by a digest of all that the result follows from.

The same program, for the same target, by the same compiler, gives the same kernels. What is recorded is thus traced and
lowered, which takes a second or two, but not compiled again, which may take minutes.

Before jax 0.12, Mosaic GPU numbered the kernels of a process, also in what it hands to the compiler: one that was
traced after fewer others, as with `--only`, was another program.
"""

import hashlib
import json
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import jax

from jaxinfer_kernels.check.cases import Case, Lowering
from jaxinfer_kernels.check.results import Result, from_json
from jaxinfer_kernels.check.targets import Target

_COMPILERS = {"tpu": ("jaxlib", "libtpu"), "cuda": ("jaxlib", "jax-cuda13-pjrt", "nvidia-cuda-nvcc", "nvidia-nvvm")}
_DIGITS = 32
_JUDGES = ("collectives.py", "hlo.py", "ptx.py", "results.py", "schedule.py")
_LEFT_OUT = ("state", "problems", "recorded")  # the same for all


class Record:
    """Results that are known to compile, at most one for each target and case. A file that does not exist has none."""

    def __init__(self, known: Iterable[Result]):
        self._known = {_key(result): result for result in known}

    @classmethod
    def read(cls, file: Path) -> Self:
        rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.is_file() else []
        return cls(from_json({**row, "state": "ok"}) for row in rows)

    def find(self, target: str, case: Case, digest: str) -> Result | None:
        """The result of a case, where it was made of the very same."""
        known = self._known.get((case.program, case.shape, target))
        return known._replace(recorded=True) if known is not None and known.digest == digest else None

    def write(self, file: Path, results: Iterable[Result]) -> None:
        """Takes up what is new, forgets what failed since, and writes a line a case."""
        for result in results:
            if result.state == "ok":
                self._known[_key(result)] = result
            else:
                self._known.pop(_key(result), None)
        rows = [json.dumps(_row(result)) for _, result in sorted(self._known.items())]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("[\n" + ",\n".join(rows) + "\n]\n")


def stable_text() -> None:
    """Has JAX write programs without the places in the source that they come from, which no compiler minds."""
    jax.config.update("jax_traceback_in_locations_limit", 0)
    # Mosaic GPU writes some, with the path of the checkout, all the same.
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*")


def digest_of(case: Case, target: Target, lowering: Lowering) -> str:
    """Return a digest of the program, its target, the compilers, the expected result and the code that judges it."""
    asked = (case.kept, case.donated, case.wgmma, case.exchange, lowering.options)
    variables = sorted(target.variables(Path("dump")).items())
    compilers = [(name, _version(name)) for name in _COMPILERS[target.platform]]
    hashed = hashlib.sha256(lowering.lowered.as_text().encode())
    for part in (target, asked, variables, compilers):
        hashed.update(repr(part).encode())
    for name in _JUDGES:
        hashed.update(Path(__file__).with_name(name).read_bytes())
    return hashed.hexdigest()[:_DIGITS]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _key(result: Result) -> tuple[str, str, str]:
    return result.program, result.shape, result.target


def _row(result: Result) -> dict[str, Any]:
    """A result's figures, its time rounded."""
    seconds = None if result.seconds is None else round(result.seconds, 1)
    row = result._replace(seconds=seconds)._asdict()
    return {name: value for name, value in row.items() if value not in (None, ()) and name not in _LEFT_OUT}
