"""scripts/environment.sh with a stand-in for uv that writes down what it is asked to install."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.material import REPOSITORY

UV = """#!/usr/bin/env bash
here="$(dirname "$0")"
case "$1" in
  --version) echo "uv 0" ;;
  venv) while [[ "$1" != --python ]]; do shift; done; "$2" -m venv --without-pip "$3"; echo "venv" >>"$here/log" ;;
  pip) echo "install ${@: -1}" >>"$here/log"; sleep "${UV_SLEEP:-0}"; [[ ! -f "$here/fail" ]] ;;
esac
"""

PROGRAM = """#!/usr/bin/env bash
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
ensure_environment "$repository/.venv" "$@"
"$repository/.venv/bin/python" -c 'print("ran")'
"""


BUILD = """\
import pathlib, sys
with (pathlib.Path(__file__).parent / "log").open("a") as log:
    print(*sys.argv[1:], pathlib.Path(sys.prefix).name == ".venv", file=log)
if not sys.argv[1:] and (pathlib.Path(__file__).parent / "fail").exists():
    sys.exit("no native kernels: no compiler\\nand more")
"""
"""A build.py that writes down what it is asked, and whether the environment's Python runs it."""


PIP = """#!/usr/bin/env bash
[[ "$*" == *--version ]] && exit
cat "$(dirname "$0")/said"
exit "$(cat "$(dirname "$0")/status")"
"""
"""A Python whose pip says what a file has, and ends with a status."""

INSTALLED = """\
Collecting small
  Downloading small-1.0-py3-none-any.whl.metadata (2.0 MB)
  Downloading small-1.0-py3-none-any.whl (20 kB)
Processing /wheels/near-2.0-py3-none-any.whl
Downloading large_one-0.1.86-cp311-cp311-manylinux_2_28_x86_64.whl (21.8 MB)
Installing collected packages: small, near, large_one
Successfully installed large_one-0.1.86 near-2.0 small-1.0
"""

FAILED = """\
Looking in indexes: https://pypi.org/simple
Collecting small
  error: subprocess-exited-with-error

  exit code: 1
      Collecting setuptools
      ERROR: no compiler
"""

BASE_PYTHON: str = getattr(sys, "_base_executable")  # noqa: B009 - of the environment that runs the tests


class Checkout:
    """A copy of the scripts in a folder of its own, with `bin` as the first folder on PATH."""

    def __init__(self, root: Path) -> None:
        self.root, self.bin = root, root / "bin"

    def write(self) -> None:
        (self.root / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy(REPOSITORY / "scripts" / "environment.sh", self.root / "scripts")
        for name in ("pyproject.toml", "constraints.txt"):
            (self.root / name).write_text("# one\n")
        self.program(self.bin / "uv", UV)
        self.program(self.root / "scripts" / "go", PROGRAM)
        (self.bin / "python3").symlink_to(BASE_PYTHON)

    def program(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def start(self, *extras: str, **variables: str) -> subprocess.Popen[str]:
        path = f"{self.bin}:/usr/bin:/bin"
        environment = {"PATH": path, "HOME": str(self.root)} | variables
        command = [str(self.root / "scripts" / "go"), *extras]
        return subprocess.Popen(
            command,
            env=environment,
            cwd="/",
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def go(self, *extras: str, **variables: str) -> tuple[int, str, str]:
        """Exit status, output and errors of one run from another folder."""
        process = self.start(*extras, **variables)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def installed(self) -> list[str]:
        """Extras of each installation since the last call; `venv` where an environment was made."""
        log = self.bin / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.write_text("")
        return [line.removeprefix("install ").removeprefix(str(self.root)) for line in lines]

    def with_native_kernels(self) -> Path:
        """Where their build is, which writes a log and may fail."""
        folder = self.root / "kernels/jaxinfer_kernels/cpu"
        folder.mkdir(parents=True)
        (folder / "build.py").write_text(BUILD)
        return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = Checkout(tmp_path / "checkout")
    made.write()
    return made


def test_it_is_made_once(checkout: Checkout):
    assert checkout.go()[:2] == (0, "ran\n")
    assert checkout.installed() == ["venv", ""]
    assert checkout.go() == (0, "ran\n", "")
    assert checkout.installed() == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_file_makes_it_stale(checkout: Checkout, name: str):
    checkout.go("dev")
    (checkout.root / name).write_text("# two\n")
    assert checkout.go()[0] == 0
    assert checkout.installed() == ["venv", "[dev]", "[dev]"]


def test_extras_add_up_and_none_is_taken_away(checkout: Checkout):
    checkout.go("dev")
    checkout.go()
    checkout.go(JAXINFER_EXTRAS="cuda uvloop")
    assert checkout.installed() == ["venv", "[dev]", "[cuda,dev,uvloop]"]


def test_native_kernels_are_compiled_ahead_and_are_looked_after_each_time(checkout: Checkout):
    folder = checkout.with_native_kernels()
    assert checkout.go()[:2] == (0, "ran\n")
    assert checkout.go() == (0, "ran\n", "")
    assert (folder / "log").read_text().splitlines() == ["--ahead False", "True", "True"]


def test_one_line_says_that_native_kernels_cannot_be_built(checkout: Checkout):
    folder = checkout.with_native_kernels()
    checkout.go()
    (folder / "fail").touch()
    assert checkout.go() == (0, "ran\n", "go: no native kernels: no compiler\n")


def test_a_moved_checkout_gets_a_new_one(checkout: Checkout, tmp_path: Path):
    checkout.go("dev")
    checkout.root.rename(tmp_path / "moved")
    moved = Checkout(tmp_path / "moved")
    moved.installed()
    assert moved.go("dev")[:2] == (0, "ran\n")
    assert moved.installed() == ["venv", "[dev]"]


def test_an_upgraded_python_makes_it_anew(checkout: Checkout):
    checkout.go("dev")
    stamp = checkout.root / ".venv" / "stamp"
    stamp.write_text(stamp.read_text().replace("3.", "2.", 1))
    assert checkout.go()[:2] == (0, "ran\n")
    assert checkout.installed() == ["venv", "[dev]", "venv", ""]


def test_a_wrong_python_is_a_clear_error(checkout: Checkout):
    older = checkout.bin / "older"
    checkout.program(older, "#!/bin/sh\nexit 1\n")
    code, _, err = checkout.go(PYTHON=str(older))
    assert code != 0
    assert f"PYTHON={older} does not run, or is older than Python 3.11" in err


def test_a_python_that_does_not_run_is_passed_over(checkout: Checkout):
    shim = checkout.root / "shims"
    shim.mkdir()
    checkout.program(shim / "python3", "#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    assert checkout.go(PATH=f"{shim}:{checkout.bin}:/usr/bin:/bin")[:2] == (0, "ran\n")


def test_no_python_is_a_clear_error(checkout: Checkout):
    tools = checkout.root / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "env"):
        (tools / name).symlink_to(str(shutil.which(name)))
    code, _, err = checkout.go(PATH=str(tools))
    assert code != 0
    assert "no Python 3.11 or newer found on PATH" in err


def test_a_failed_installation_is_made_anew(checkout: Checkout):
    (checkout.bin / "fail").touch()
    code, out, _ = checkout.go()
    assert (code != 0, out) == (True, "")
    (checkout.bin / "fail").unlink()
    assert checkout.go()[:2] == (0, "ran\n")
    assert checkout.installed() == ["venv", "", "venv", ""]


def test_an_interrupted_run_is_made_anew(checkout: Checkout):
    process = checkout.start(UV_SLEEP="30")
    log = checkout.bin / "log"
    while not log.exists() or "install" not in log.read_text():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert checkout.go()[:2] == (0, "ran\n")
    assert checkout.installed() == ["venv", "", "venv", ""]


def test_of_two_at_once_one_makes_it(checkout: Checkout):
    both = [checkout.start(UV_SLEEP="1") for _ in range(2)]
    assert [process.communicate(timeout=60)[0] for process in both] == ["ran\n", "ran\n"]
    assert checkout.installed() == ["venv", ""]


def test_an_environment_of_somebody_else_is_kept(checkout: Checkout):
    venv = checkout.root / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (venv / "theirs").touch()
    assert checkout.go()[:2] == (0, "ran\n")
    assert (venv / "theirs").exists()
    assert checkout.installed() == [""]


def pip_install(root: Path, said: str, status: int) -> subprocess.CompletedProcess[str]:
    """Runs what installs where there is no uv."""
    folder = root / "bin"
    folder.mkdir()
    (folder / "said").write_text(said)
    (folder / "status").write_text(str(status))
    (folder / "python").write_text(PIP)
    (folder / "python").chmod(0o755)
    program = 'source "$1/scripts/environment.sh"; has_uv() { false; }; install "$2" "" || exit 1'
    command = ["bash", "-euo", "pipefail", "-c", program, "go", str(REPOSITORY), str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_pips_large_downloads_and_numbers_are_shown(tmp_path: Path):
    done = pip_install(tmp_path, INSTALLED, 0)
    assert (done.returncode, done.stdout) == (0, "")
    lines = [re.fullmatch(r"\S+ \d+:\d\d (.*)", line) for line in done.stderr.splitlines()]
    assert [line and line[1] for line in lines] == [
        "downloading large_one 0.1.86 (21.8 MB)",
        "installing 3 packages",
        "installed 3 packages",
    ]


def test_pips_own_error_is_shown_in_full(tmp_path: Path):
    done = pip_install(tmp_path, FAILED, 2)
    assert done.returncode == 1
    assert done.stderr.startswith(FAILED.partition("small\n")[2])
    assert f"pip failed; all that it said is in {tmp_path}/install.log" in done.stderr
    assert (tmp_path / "install.log").read_text() == FAILED


@pytest.mark.long
def test_a_quiet_pip_is_still_at_work(tmp_path: Path):
    program = 'source "$1/scripts/environment.sh"; { echo Collecting one; sleep 11; } | show_progress "$2"'
    command = ["bash", "-euo", "pipefail", "-c", program, "go", str(REPOSITORY), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert re.search(r" \d:\d\d 1 packages found$", done.stderr.splitlines()[0])
