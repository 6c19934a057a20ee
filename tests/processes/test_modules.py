"""Where a server's processes find their modules: not in the folder that it was started in."""

import subprocess
from pathlib import Path

import pytest

from jaxinfer.processes.supervisor import API, ENGINE


@pytest.mark.parametrize("command", [ENGINE, API], ids=["engine", "api"])
def test_the_current_folder_is_not_looked_in(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "jaxinfer.py").write_text("raise SystemExit('the wrong module')")
    ran = subprocess.run(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    assert "JSONDecodeError" in ran.stderr  # of its settings, which come by its input
    assert "the wrong module" not in ran.stderr
