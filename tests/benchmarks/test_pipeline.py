"""Stages are busier, and requests wait less, as the engine plans for them: by a clock that has no noise."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.material import REPOSITORY

PROGRAM = REPOSITORY / "benchmarks" / "pipeline.py"


@pytest.mark.long
def test_it_compares_plans_and_ends_with_the_headline(tmp_path: Path) -> None:
    draw, trace = random.Random(0), tmp_path / "trace.csv"
    rows = [f"{draw.randint(5, 3000)},{draw.randint(1, 200)}" for _ in range(700)]
    trace.write_text("\n".join(["ContextTokens,GeneratedTokens", *rows, ""]))
    found, picture = tmp_path / "found.json", tmp_path / "stages.svg"
    command = [sys.executable, str(PROGRAM), str(trace), "--json", str(found), "--svg", str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(found.read_text())
    spread, fixed, together = result["saturated"]
    assert [row["variant"] for row in (spread, fixed, together)] == ["spread", "fixed", "together"]
    assert min(spread["busy"]) > 0.9
    assert max(fixed["busy"] + together["busy"]) < 0.75
    first = {row["variant"]: row["first_ms"]["median"] for row in result["loaded"]}
    assert first["spread"] < first["fixed"]
    assert result["alone"] <= 0.3
    assert picture.read_text().count("<title>step") > 100
    line = r"stages_busy \S+%, fixed budgets \S+%, a prompt alone \S+% of stages in turn"
    assert re.fullmatch(line, done.stdout.splitlines()[-1])
