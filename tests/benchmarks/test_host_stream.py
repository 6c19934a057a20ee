"""The benchmark runs, writes what it promises, and ends with its headline. Nothing is timed here."""

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "host_stream.py"


def test_it_writes_rows_and_ends_with_the_headline(tmp_path: Path) -> None:
    file = tmp_path / "host_stream.json"
    command = [sys.executable, str(PROGRAM), "--json", str(file), "--steps", "20", "--hosts", "2", "3", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert [row["hosts"] for row in result["rows"]] == [2, 3]
    assert all(row["send_us"][1] <= row["send_us"][0] <= row["send_us"][2] for row in result["rows"])
    assert set(result["provenance"]) >= {"command", "commit", "date", "processor", "versions", "xla_flags"}
    assert result["engine"][0]["engine"] > 0
    headline = done.stdout.splitlines()[-1]
    assert headline.startswith("sending a decode step of 256 rows to 2 hosts:")
    assert "; engine_share of two hosts " in headline
