"""The benchmark runs, writes what it promises, and ends with its headline. Nothing is timed here."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "overlap.py"


@pytest.mark.long
def test_it_drives_both_and_ends_with_the_shares(tmp_path: Path) -> None:
    file = tmp_path / "overlap.json"
    command = [sys.executable, str(PROGRAM), "--json", str(file), "--rounds", "1", "--seconds", "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=200)
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert result["engine"][0]["bare"] > 0
    assert set(result["server"][0]["busy"]) == {"engine", "api", "client"}
    assert re.fullmatch(r"engine_share \S+% \(.*\), server_share \S+% \(.*\)", done.stdout.splitlines()[-1])
