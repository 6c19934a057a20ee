"""scripts/environment.sh with a stand-in for uv that writes down what it is asked to install."""

import os
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
