"""How the clients' environments are made and kept, with stand-ins for uv and npm, and what the manifest holds."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.environments import UnavailableError, command, ensure, plain_variables
from tests.clients.manifest import HERE, Client, Environment, read_manifest

# Each writes down how it was called, and fails where a file says so.
STAND_IN = """#!/bin/sh
here="$(dirname "$0")"
[ "$1" = --version ] && exit 0
echo "$(basename "$0") $*" >> "$here/log"
if [ "$1" = venv ]; then for folder; do :; done; mkdir -p "$folder"; fi
[ -f "$here/broken-$1" ] && { echo "no route to anywhere"; exit 1; }
exit 0
"""
PINS = Environment("some", "python", ("one==1.0", "two==2.0"), "three==3.0\n")


class Programs:
    """Stand-ins for the programs of these names: nothing else is on PATH but a few of the system's."""

    def __init__(self, folder: Path, *names: str):
        self.folder = folder
        folder.mkdir()
        for name in names:
            (folder / name).write_text(STAND_IN)
            (folder / name).chmod(0o755)
        for name in ("sh", "dirname", "basename", "mkdir"):
            (folder / name).symlink_to(shutil.which(name) or name)

    def calls(self) -> list[str]:
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    made = Programs(tmp_path / "bin", "uv", "npm", "node")
    monkeypatch.setenv("PATH", str(made.folder))
    return made


def test_an_environment_is_made_once_with_its_pins(programs: Programs, tmp_path: Path) -> None:
    folder = ensure(PINS, tmp_path / "cache")
    venv, install = programs.calls()
    assert venv == f"uv venv --quiet --python {sys.executable} {folder}"
    assert install.endswith(" one==1.0 two==2.0")
    (constraints,) = re.findall(r"--constraint (\S+)", install)
    assert Path(constraints).read_text() == "three==3.0\n"
    assert ensure(PINS, tmp_path / "cache") == folder
    assert len(programs.calls()) == 2


@pytest.mark.parametrize(
    "changed", [PINS._replace(requirements=("one==1.1", "two==2.0")), PINS._replace(constraints="three==3.1\n")]
)
def test_other_pins_are_another_environment(programs: Programs, tmp_path: Path, changed: Environment) -> None:
    assert ensure(PINS, tmp_path / "cache") != ensure(changed, tmp_path / "cache")
    assert len(programs.calls()) == 4


def test_what_could_not_be_installed_is_tried_again(programs: Programs, tmp_path: Path) -> None:
    broken = programs.folder / "broken-pip"
    broken.touch()
    with pytest.raises(UnavailableError, match="no route to anywhere"):
        ensure(PINS, tmp_path / "cache")
    broken.unlink()
    ensure(PINS, tmp_path / "cache")
    assert [call.split()[1] for call in programs.calls()] == ["venv", "pip", "venv", "pip"]


def test_npm_runs_no_script_of_a_package(programs: Programs, tmp_path: Path) -> None:
    ensure(Environment("web", "node", ("ai@6.0.0",)), tmp_path / "cache")
    (install,) = programs.calls()
    assert install.startswith("npm install --ignore-scripts ")
    assert install.endswith(" ai@6.0.0")


def test_a_machine_without_npm_is_told_so(programs: Programs, tmp_path: Path) -> None:
    (programs.folder / "npm").unlink()
    with pytest.raises(UnavailableError, match="npm is not installed"):
        ensure(Environment("web", "node", ("ai@6.0.0",)), tmp_path / "cache")


def test_packages_of_node_are_found_beside_the_script(tmp_path: Path) -> None:
    (script,) = [client for client in read_manifest() if client.name == "ai-sdk"]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    line = command(script, tmp_path / "environment", scratch)
    assert line == ["node", str(scratch / "use_ai_sdk.mjs")]
    assert (scratch / "scenarios.mjs").exists()
    assert (scratch / "node_modules").readlink() == tmp_path / "environment" / "node_modules"


def test_clients_do_not_see_this_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "here")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://elsewhere.invalid")
    seen = plain_variables()
    assert not {"PYTHONPATH", "OPENAI_BASE_URL"} & set(seen)
    assert "PATH" in seen


@pytest.mark.parametrize("client", read_manifest(), ids=lambda client: client.name)
def test_every_pin_is_exact_and_every_script_is_there(client: Client) -> None:
    assert client.script.exists()
    version = r"\d+(\.\d+)+(\+cpu)?$"
    separator = "==" if client.environment.kind == "python" else "@"
    assert all(re.search(f"[a-z0-9\\]]{separator}{version}", pin) for pin in client.requirements), client.requirements


def test_no_script_is_without_a_client() -> None:
    scripts = {path for pattern in ("use_*.py", "use_*.mjs") for path in HERE.glob(pattern)}
    assert scripts == {client.script for client in read_manifest()}


def test_the_table_of_the_readme_is_that_of_the_manifest() -> None:
    rows = re.findall(r"^\| (.+?) \| ([\d.]+) \| `(use_\S+)` \| (yes|no) \|", (HERE / "README.md").read_text(), re.M)
    expected = [
        (client.title, re.split("==|(?<=.)@", client.requirements[0])[1], client.script.name,
         "yes" if client.ci else "no")
        for client in read_manifest()
    ]  # fmt: skip
    assert rows == expected


# The scenarios' own runners: a script that fails must not pass.

PYTHON_SCRIPT = (HERE / "failing_scenario.py").read_text()
NODE_SCRIPT = """
import assert from "node:assert/strict";
import { run, server } from "./scenarios.mjs";
async function first() { assert.equal(server.baseURL, "http://there/v1"); }
async function second() { assert.equal(server.model, "right", "the wrong model"); }
await run(first, second);
"""


def run_scenarios(folder: Path, kind: str, *arguments: str) -> tuple[int, str]:
    program, name, text = {
        "python": (sys.executable, "use_it.py", PYTHON_SCRIPT), "node": ("node", "use_it.mjs", NODE_SCRIPT),
    }[kind]  # fmt: skip
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    for path in (HERE / "scenarios.py", HERE / "scenarios.mjs"):
        shutil.copy(path, folder)
    (folder / name).write_text(text)
    done = subprocess.run(
        [program, str(folder / name), *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("kind", ["python", "node"])
def test_a_script_fails_where_one_scenario_does(tmp_path: Path, kind: str) -> None:
    status, told = run_scenarios(tmp_path, kind, "http://there", "wrong")
    assert status == 1
    lines = told.splitlines()
    assert lines[:2] == ["ok     first", "FAILED second"]
    assert "the wrong model" in told
    assert lines[-1] == "1 of 2 scenarios pass"


@pytest.mark.parametrize("kind", ["python", "node"])
def test_a_script_passes_where_all_scenarios_do(tmp_path: Path, kind: str) -> None:
    assert run_scenarios(tmp_path, kind, "http://there", "right")[0] == 0
    assert run_scenarios(tmp_path, kind, "http://there", "wrong", "first")[0] == 0


@pytest.mark.parametrize("kind", ["python", "node"])
def test_a_script_without_a_scenario_fails(tmp_path: Path, kind: str) -> None:
    assert run_scenarios(tmp_path, kind, "http://there", "right", "third")[0] == 1
