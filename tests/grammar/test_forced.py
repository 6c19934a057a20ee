"""Tokens that a grammar forces: they are the tokenizer's own, whoever asks and however they come."""

import json
import random
from typing import Any

import pytest
from tokenizers import Tokenizer

from jaxinfer.constraint import Constraint
from jaxinfer.grammar.grammars import Grammars
from tests.grammar.walks import END, FILE, SIZE, TOKENIZER, compiled, legal, walk
from tests.material import material

GRAMMARS = Grammars(FILE, SIZE, (END,))
RECORD: dict[str, Any] = {"kind": "person record", "first_name": "Ada", "tags": ["red apple", "blue"], "n": [1, 20]}


def schema_of(value: Any) -> dict[str, Any]:
    """One that this value alone fits."""
    if isinstance(value, dict):
        properties = {key: schema_of(each) for key, each in value.items()}
        return {"type": "object", "properties": properties, "required": list(value), "additionalProperties": False}
    if isinstance(value, list):
        parts = [schema_of(each) for each in value]
        return {"type": "array", "prefixItems": parts, "minItems": len(parts), "items": False}
    return {"const": value}


def fixed(schema: object) -> Constraint:
    return Constraint.schema(schema).with_whitespace("")


@pytest.mark.parametrize("name", ["demo", "qwen3", "llama3.2"])
def test_a_text_without_a_choice_is_spelt_as_the_tokenizer_spells_it(name: str) -> None:
    """Whole, in one run but for its last token, which is drawn."""
    file = FILE if name == "demo" else material("tokenizers", name, "tokenizer.json")
    own = Grammars(file, 1 << 18, (END,))
    ids = Tokenizer.from_file(str(file)).encode(json.dumps(RECORD), add_special_tokens=False).ids
    matcher, said = compiled(own, fixed(schema_of(RECORD)), frozenset()), list[int]()
    runs = []
    while not matcher.ended:
        run = matcher.forced()
        runs.append(len(run))
        (token,) = [run[0]] if run else [each for each in legal(own, matcher, 1 << 18) if each == ids[len(said)]]
        said.append(token)
        matcher.accept([token])
    assert said == ids
    assert max(runs) > len(ids) / 3


def test_what_is_forced_does_not_depend_on_how_tokens_come() -> None:
    """One by one, a run at once, or seen by a copy: the same tokens are forced at the same places."""
    draw = random.Random(3)
    schema = {"type": "object", "properties": {key: {"type": ["boolean", "null"]} for key in RECORD}, "required":
              list(RECORD), "additionalProperties": False}  # fmt: skip
    for constraint in [fixed(schema), Constraint.schema(schema), Constraint.text("regex", "abc(def)?ghi(jkl|mno)+")]:
        ids = walk(GRAMMARS, compiled(GRAMMARS, constraint), SIZE, draw, 200)
        alone, copied = compiled(GRAMMARS, constraint), compiled(GRAMMARS, constraint)
        at, jumps = 0, 0
        while at < len(ids):
            run = list(alone.forced())
            assert run == ids[at : at + len(run)]
            assert not run or legal(GRAMMARS, copied, SIZE) == run[:1]
            jumps += len(run) > 1
            for token in run or ids[at : at + 1]:
                alone.accept([token])
            at += len(run) or 1
            copied.accept(ids[at - (len(run) or 1) : at])
            copied = copied.copy()
            assert list(copied.forced()) == list(alone.forced())
        assert jumps or constraint.kind == "regex"


def test_no_end_is_forced_and_nothing_beyond_where_a_text_may_end() -> None:
    matcher = compiled(GRAMMARS, Constraint.choice(["the sea", "the sea side"]))
    said = list[int]()
    while run := matcher.forced():
        said += run
        matcher.accept(run)
    assert TOKENIZER.decode(said) == "the sea"
    one = compiled(GRAMMARS, Constraint.choice(["Paris, the capital of France"]))
    one.accept(list(one.forced()))
    assert not one.ended


def test_a_long_text_is_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forced is found once for all requests of a grammar, when it is compiled; a part of it is told at once."""
    draw, asked = random.Random(7), list[object]()
    monkeypatch.setattr("jaxinfer.grammar.matcher.forced_by", lambda grammar: asked.append(grammar) or ())
    text = " ".join("".join(draw.choices("abcdefgh", k=draw.randint(1, 9))) for _ in range(3000))
    matcher, said, runs = compiled(GRAMMARS, Constraint.choice([text]), frozenset()), list[int](), list[int]()
    while run := list(matcher.forced()):
        runs.append(len(run))
        matcher.accept(run[:-1])
        other = matcher.copy()
        assert list(other.forced()) == run[-1:]
        matcher.accept(run[-1:])
        said += run
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert said == ids[: len(said)]
    assert len(said) >= len(ids) - 2 > 4000
    assert 100 < max(runs) <= 1024
    assert len(asked) == 1  # at the end of it


def test_nothing_is_forced_within_a_thought() -> None:
    matcher = compiled(GRAMMARS, fixed(schema_of(RECORD)).after_thought("</think>", None))
    assert not matcher.forced()
    matcher.accept(TOKENIZER.encode("so it is</think>", add_special_tokens=False).ids)
    assert matcher.forced()


def test_fixed_white_space_is_that_of_json_dumps() -> None:
    value = {"a": [1, 2], "b": {"c": "x"}}
    for text, fits in [(json.dumps(value), True), (json.dumps(value, indent=1), False)]:
        matcher = compiled(GRAMMARS, fixed(schema_of(value)))
        ids = TOKENIZER.encode(text, add_special_tokens=False).ids
        assert (matcher.grammar.validate_tokens(ids) == len(ids)) == fits
