"""The benchmark runs, writes what it promises, and ends with its headline. Nothing is timed here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "host_cost.py"


@pytest.mark.long
def test_it_writes_rows_and_ends_with_the_headline(tmp_path: Path) -> None:
    file = tmp_path / "host_cost.json"
    command = [sys.executable, str(PROGRAM), "--json", str(file), "--steps", "20", "--turns", "2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert [row["running"] for row in result["rows"]] == [1, 16, 64, 256, 1024]
    assert (result["drafting"]["running"], result["drafting"]["drafts"]) == (256, 4)
    assert result["drafting"]["step_us"] > 0
    crowd = result["crowd"]
    assert (crowd["running"], crowd["waiting"]) == (256, 100_000)
    assert len(crowd["alone_us"]) == len(crowd["crowded_us"]) == 2
    assert all(row["step_us"] >= row["apply_us"] > 0 for row in result["rows"])
    assert set(result["provenance"]) >= {"command", "commit", "date", "processor", "versions", "xla_flags"}
    assert (
        result["provenance"]["command"] == "python benchmarks/host_cost.py --json host_cost.json --steps 20 --turns 2"
    )
    assert done.stdout.splitlines()[-1].startswith("host cost of a step at 256 running requests:")
