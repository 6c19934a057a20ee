"""The benchmark runs, writes what it promises, and ends with its headline. Nothing is timed here."""

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "call_stream.py"


def test_it_writes_rows_and_ends_with_the_headline(tmp_path: Path) -> None:
    file = tmp_path / "call_stream.json"
    command = [sys.executable, str(PROGRAM), "--json", str(file), "--turns", "1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    names = ["decode, 1 rows", "decode, 64 rows", "decode, 256 rows", "mixed, 512 tokens", "mixed, 2048 tokens"]
    names += ["masks, 8 rows", "masks, 64 rows"]
    assert [row["step"] for row in result["rows"]] == names
    sizes = [row["bytes"] for row in result["rows"]]
    assert sizes == sorted(sizes)
    assert result["digests_us"]["bytes"] > 4 * 4 * 256  # a slot and an entry of a block table each
    assert set(result["provenance"]) >= {"command", "commit", "date", "processor", "versions", "xla_flags"}
    assert done.stdout.splitlines()[-1].startswith("messages of a decode step of 256 rows:")
