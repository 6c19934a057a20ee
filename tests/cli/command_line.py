"""The command line in a process of its own: over the real engine, the simulated one, or a slow one."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.material import REPOSITORY

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"}
"""Variables of every process that is started here; a test may patch one."""

REAL = (sys.executable, "-m", "jaxinfer")
SIMULATED = (sys.executable, "-m", "tests.cli.serve_simulated")


def slow(part: str) -> tuple[str, ...]:
    """The program over the simulated device where `part` is slow or fails, one of those of tests/cli/slow.py."""
    return (sys.executable, "-m", "tests.cli.slow", part)


SLOW_STEPS = slow("steps")
"""Each step takes a second."""


def call(*arguments: str, program: Sequence[str] = REAL, **options: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end. options: environment variables."""
    return subprocess.run(
        [*program, *arguments], capture_output=True, text=True, cwd=REPOSITORY, env={**ENVIRONMENT, **options},
        timeout=100, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def call_each(commands: Sequence[Sequence[str]], folder: Path) -> list[subprocess.CompletedProcess[str]]:
    """Runs commands to their ends, one after another, each in a fork of one process, which has imported them.

    folder: an empty one, for what they print.
    """
    files = [folder / f"{number}.json" for number in range(len(commands))]
    for file, arguments in zip(files, commands, strict=True):
        file.write_text(json.dumps(arguments))
    subprocess.run(
        [sys.executable, "-m", "tests.cli.forked", *map(str, files)], cwd=REPOSITORY, env=ENVIRONMENT, timeout=100,
        stdin=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    return [_printed(file) for file in files]


def _printed(file: Path) -> subprocess.CompletedProcess[str]:
    status, out, err = (file.with_suffix(name).read_text() for name in (".status", ".out", ".err"))
    return subprocess.CompletedProcess(json.loads(file.read_text()), int(status), out, err)


class Running:
    """A server in a process of its own, once it says that it is ready."""

    def __init__(self, program: Sequence[str], *arguments: str):
        self.process = subprocess.Popen(
            [*program, "serve", *arguments, "--port", "0"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY, env=ENVIRONMENT,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.ready_line = self.process.stdout.readline()
        self.try_line = self.process.stdout.readline().strip()
        found = re.search(r"http://[\d.]+:\d+", self.ready_line)
        assert found is not None, self.process.communicate(timeout=30)
        self.url = found.group()
