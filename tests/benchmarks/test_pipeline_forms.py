"""Both forms of the pipeline give one device's tokens, and the benchmark writes what it promises. Nothing is timed."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.pipeline_parts.microbatches import chunk, decode_round
from benchmarks.pipeline_parts.schedule import LayerCost, schedules

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "pipeline_forms.py"
FORMS = {"A", "A+", "B"}


@pytest.mark.long
def test_both_give_one_devices_tokens_and_it_ends_with_its_headline(tmp_path: Path) -> None:
    file = tmp_path / "pipeline_forms.json"
    command = [sys.executable, str(PROGRAM), "--json", str(file), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=250)
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert result["tokens_equal"]
    assert set(result["host"]) == FORMS
    assert {name: one["programs"] for name, one in result["compile"].items()} == {"A": 2, "A+": 2, "B": 8}
    assert "2,2,2,2: a chunk every 4th" in result["work"]
    headline = r"host A \d+ B \d+ us a tick, programs A 2 in \S+ s B 8 in \S+ s, chunks between A \d+ A\+ \d+ B \d+ ms"
    assert re.fullmatch(headline, done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("layers", "head", "last"),
    [((2, 2, 2, 2), 0, [11 * 2] * 3), ((2, 2, 2, 1), 0, [22, 21, 21]), ((2, 2, 2, 1), 2, [38, 30, 30])],
)
def test_a_tick_is_the_longest_stage(layers: Sequence[int], head: int, last: list[int]) -> None:
    """Eight microbatches, of layers that take 1 ms. In A each stage has two; ticks from the fourth on have the head."""
    found = schedules(layers, head, decode_round(4, 4) * 2, LayerCost(1, 0))
    assert [found[name][0] for name in ("A", "A+", "B")] == last


def test_a_prompt_waits_for_no_tokens() -> None:
    """Microbatches behind the second prompt find it further on, so that they wait less."""
    rounds = [chunk(60, 256), *decode_round(4, 4)[1:]]
    found = schedules((1, 1, 1, 1), 0, rounds * 8, LayerCost(1, 0.01))
    assert found["B, own rows"][0] < found["B"][0] <= found["A"][0]
