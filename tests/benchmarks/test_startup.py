"""The benchmark runs, writes what it promises, and ends with its headline. Nothing is timed here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.startup import summary

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "startup.py"
PARTS = ["total", "imports", "plan", "load", "fit", "tracing", "compile", "warm_up", "rest"]
SMALL = ["demo", "--max-num-seqs", "1", "--max-num-batched-tokens", "8", "--max-scored", "1"]


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=600
    )


@pytest.mark.long
def test_it_starts_a_server_cold_and_warm_and_splits_the_time(tmp_path: Path) -> None:
    file = tmp_path / "startup.json"
    done = run(tmp_path, "--json", str(file), "--cold", "1", "--warm", "2", "--", *SMALL)
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert [len(result["runs"][form]) for form in ("cold", "warm")] == [1, 2]
    for each in (*result["runs"]["cold"], *result["runs"]["warm"]):
        seconds, mib = each["seconds"], each["mib"]
        assert list(seconds) == PARTS
        assert all(part >= 0 for part in seconds.values())
        assert abs(sum(seconds.values()) - 2 * seconds["total"]) < 0.01
        assert list(mib) == ["resident", "weight_files", "kv_at_most"]
        assert 100 < mib["resident"] < 4_000
    assert result["flags"] == SMALL
    assert set(result["provenance"]) >= {"command", "commit", "versions", "xla_flags", "xla_options"}
    assert done.stdout.splitlines()[-1].startswith("ready after ")


@pytest.mark.long
def test_a_server_that_ends_is_told_with_its_reason(tmp_path: Path) -> None:
    done = run(tmp_path, "--", "demo", "--num-blocks", "1")
    assert done.returncode != 0
    assert "num-blocks" in done.stderr


def test_the_summary_gives_median_and_spread() -> None:
    runs = [{"total": 3.0, "load": 1.0}, {"total": 1.0, "load": 0.5}, {"total": 2.0, "load": 0.25}]
    assert summary(runs) == {
        "total": {"median": 2.0, "low": 1.0, "high": 3.0},
        "load": {"median": 0.5, "low": 0.25, "high": 1.0},
    }
