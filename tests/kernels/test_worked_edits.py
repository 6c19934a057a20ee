"""The edits of rules in configs/meshes/README.md: what devices send each other before and after is what it says."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.material import REPOSITORY

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu, of the extra compile-tpu, is not installed"
)

PAGE = (REPOSITORY / "configs/meshes/README.md").read_text()
EDITS = dict(re.findall(r"^### (.+?)$(.+?)(?=^### |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def sent(mesh: Path, program: str, model: str) -> str:
    """What the check prints below a program, in one line."""
    *names, form = f"{model}, ".split(", ")[:2]
    only = f"{program} {names[0]}, 2 layers, {mesh.stem}, {form or 'mosaic_tpu'}"
    paths = [str(REPOSITORY / name) for name in ("", "kernels", "scripts")]
    done = subprocess.run(
        [sys.executable, REPOSITORY / "scripts/check_programs.py", "--mesh", mesh, "--targets", "v6e", "--only", only],
        env=os.environ | {"PYTHONPATH": ":".join(paths), "XLA_FLAGS": ""},
        text=True,
        capture_output=True,
        timeout=800,
        check=False,
    )
    table = done.stdout.split("FAILED  ")[0]
    assert table.count("\n  v6e ") == 1, done.stdout + done.stderr
    lines = re.findall(r"^ {9}(\d+ .+)$", table, re.MULTILINE)
    return "; ".join(lines) or "nothing"


ROWS = [
    pytest.param(edit, row, marks=pytest.mark.long)  # half a minute each, of `sample` a minute
    for edit, text in EDITS.items()
    for row in re.findall(r"^\| `(.+?)`, (.+?) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
]


@pytest.mark.parametrize(("edit", "row"), ROWS)
def test_what_devices_send_each_other(edit: str, row: tuple[str, str, str, str], tmp_path: Path):
    program, model, *cells = row
    (text,) = re.findall(r"```yaml\n(.+?)```", EDITS[edit], re.DOTALL)
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    before.write_text(yaml.safe_dump({"axes": yaml.safe_load(text)["axes"]}))
    after.write_text(text)
    assert [sent(mesh, program, model) for mesh in (before, after)] == cells


def test_every_edit_has_its_rows():
    assert [edit for edit, _ in (row.values for row in ROWS)] == [edit for edit in EDITS for _ in range(2)]
