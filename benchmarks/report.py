"""Provenance of every benchmark's figures: the command, the commit, the machine, the versions, the date."""

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).resolve().parents[1]
_PACKAGES = ("jaxinfer", "jax", "jaxlib", "flax", "numpy")


def provenance(command: str | None = None, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Describe the origin of a figure: the command, the commit, the date, the machine and the versions.

    command: the one that a person typed, if it is not this process's own. packages: packages whose versions matter,
    besides jaxinfer's.
    """
    return {
        "command": command or own_command(),
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "versions": {name: _version(name) for name in (*_PACKAGES, *packages)},
        "xla_flags": _flags("XLA_FLAGS"),
        "libtpu_init_args": _flags("LIBTPU_INIT_ARGS"),
        "xla_options": _options(),
    }


def own_command() -> str:
    """This process's command line, which can be pasted into a shell; absolute paths do not tell of the machine.

    Those in the repository are shown from there, of others the last part.
    """
    program, *arguments = sys.argv
    return shlex.join(["python", *map(_shown, [str(Path(program).resolve()), *arguments])])


def write_json(path: str | None, result: dict[str, Any], where: dict[str, Any] | None = None) -> None:
    """Writes a result with its provenance (`where`, by default `provenance()`), where a file was asked for."""
    if path is not None:
        Path(path).write_text(json.dumps({**result, "provenance": where or provenance()}, indent=1) + "\n")


def _shown(argument: str) -> str:
    """`/anywhere/model` as `model`, and `--flag=/anywhere/model` as `--flag=model`."""
    flag, equals, value = ("", "", argument) if argument.startswith("/") else argument.partition("=")
    path = Path(value)
    if not path.is_absolute():
        return argument
    return f"{flag}{equals}{path.relative_to(_REPOSITORY) if path.is_relative_to(_REPOSITORY) else path.name}"


def _flags(variable: str) -> str:
    return " ".join(map(_shown, os.environ.get(variable, "").split()))


def _options() -> dict[str, str]:
    """Return the default compiler options of the engine's programs on each platform."""
    from jaxinfer.config import RunnerConfig
    from jaxinfer.runner.platform.xla_options import PLATFORM_OPTIONS, compiler_options, described

    return {platform: described(compiler_options(platform, RunnerConfig())) for platform in PLATFORM_OPTIONS}


def _commit() -> str:
    """`unknown` where this is no checkout; `+changes` where files differ from the commit's."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=here, capture_output=True, text=True)
        dirty = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=here, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "") if head.returncode == 0 else "unknown"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
