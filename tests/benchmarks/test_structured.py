"""The simulated device draws what grammars allow, and the benchmark ends with its headline. Nothing is timed here."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from llguidance import LLMatcher

from benchmarks.structured_parts.device import make_core
from benchmarks.structured_parts.server import schema
from jaxinfer.constraint import Constraint
from jaxinfer.engine.client.sequence_ids import SequenceIds
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.grammar.reading import LIMITS, read_tokenizers
from jaxinfer.sampling import SamplingParams
from tests.material import REPOSITORY

PROGRAM = REPOSITORY / "benchmarks" / "structured.py"
TOKENIZER = REPOSITORY / "jaxinfer" / "demo" / "tokenizer.json"


def test_its_device_draws_what_grammars_allow_and_anything_elsewhere() -> None:
    """By a matcher of its own, with the end of a string now and then."""
    core, names, tokens = make_core(TOKENIZER, 4, 0.0005), SequenceIds(), {name: list[int]() for name in "abcd"}
    for number, name in enumerate(tokens):
        asked = Constraint.schema(schema(number)) if number % 2 else None
        params = SamplingParams(max_tokens=150, ignore_eos=True, structured_outputs=asked)
        core.add_request(GenerateRequest(name, [40 + number], params))
    while core.has_work():
        for delta in names.expand(core.step()):
            tokens[delta.request_id] += delta.token_ids
            assert delta.error is None
    core.close()
    ids = read_tokenizers(str(TOKENIZER), 2560, (0,)).guided
    for number, drawn in enumerate(tokens.values()):
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema(number)))
        taken = LLMatcher(ids, grammar, limits=LIMITS).try_consume_tokens(drawn)
        assert (taken == len(drawn) == 150) == bool(number % 2)
        assert f'"field_{number}_1"' in ids.decode_str(drawn) or not number % 2


@pytest.mark.long
def test_it_ends_with_the_shares(tmp_path: Path) -> None:
    file = tmp_path / "structured.json"
    command = [sys.executable, str(PROGRAM), str(TOKENIZER), "--json", str(file), "--rounds", "1", "--seconds", "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert [row["rows"] for row in result["rows"]] == [1, 16, 64]
    assert [row["kind"] for row in result["server"]["turns"]] == ["plain", "constrained", "half"]
    assert all(row["all"] > row["odd"] > 0 for row in result["server"]["turns"])
    assert re.fullmatch(r"structured_share \S+% \(.*\), plain_beside \S+% \(.*\)", done.stdout.splitlines()[-1])
