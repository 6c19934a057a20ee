"""The benchmark runs, writes what it promises, and ends with its headline. Nothing is timed here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "event_loop.py"


@pytest.mark.long
def test_it_attacks_and_ends_with_the_longest_stall(tmp_path: Path) -> None:
    file = tmp_path / "event_loop.json"
    command = [sys.executable, str(PROGRAM), "--json", str(file), "--seconds", "1", "--only", "nested"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=200)
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert [row["attack"] for row in rows] == ["idle", "8 MB of nested lists", "30 kB of nested lists", "idle"]
    assert set(rows[1]["answers_by_status"]) == {"400"}
    assert all(row["neighbour"]["unchanged"] for row in rows)
    assert done.stdout.splitlines()[-1].startswith("longest stall ")
