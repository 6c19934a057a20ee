"""The attacks are what they are called, and the program ends with its headline. Nothing is timed here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.structured_parts.hostile import ATTACKS
from tests.material import REPOSITORY

PROGRAM = REPOSITORY / "benchmarks" / "structured_hostile.py"


def test_every_body_is_json_and_none_is_like_another() -> None:
    for name, (bodies, rate) in ATTACKS.items():
        found = [bodies(number) for number in range(4)]
        assert rate > 0
        assert name == "5,000 levels" or len({*found}) == 4, name
        assert all(body.startswith(b'{"prompt": "a"') for body in found)
        if name != "5,000 levels":
            assert all(json.loads(body)["structured_outputs"] for body in found[:2])
    sizes = [len(ATTACKS["10 MB"][0](number)) for number in (0, 1)]
    assert 9_999_000 < sizes[0] < 10_001_000
    assert 7_899_000 < sizes[1] < 7_901_000


@pytest.mark.long
def test_it_attacks_and_ends_with_the_headline(tmp_path: Path) -> None:
    file = tmp_path / "hostile.json"
    flags = ["--json", str(file), "--seconds", "2", "--rounds", "1", "--only", "00"]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *flags], capture_output=True, text=True, cwd=tmp_path, timeout=400
    )
    assert done.returncode == 0, done.stderr
    rows = {row["attack"]: row for row in json.loads(file.read_text())["rows"]}
    assert set(rows) == {"chains of 1,200 definitions", "5,000 levels", "10,000 schemas"}
    assert set(rows["5,000 levels"]["answers_by_status"]) == {"400"}
    assert set(rows["10,000 schemas"]["answers_by_status"]) == {"200"}
    assert all(turn["quiet"]["tokens"] and turn["attack"]["tokens"] for row in rows.values() for turn in row["turns"])
    assert done.stdout.splitlines()[-1].startswith("p99 between tokens x ")
