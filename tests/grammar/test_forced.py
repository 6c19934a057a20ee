"""Tokens that a grammar forces: they are the tokenizer's own, whoever asks and however they come."""

import json
import random
import re
from functools import cache
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


def tagged(node: dict[str, Any]) -> Constraint:
    return Constraint.structural_tag({"format": node})


DIGITS = {"type": "regex", "pattern": "[0-9]{3}"}
LETTERS: dict[str, tuple[Constraint, str]] = {
    "a choice": (Constraint.choice(["a <think>ok"]), "a <think>ok"),
    "a constant": (Constraint.schema({"const": "say </think> now"}), '"say </think> now"'),
    "an end": (Constraint.schema({"const": "say <|im_end|> now"}), re.escape('"say <|im_end|> now"')),
    "a regex": (Constraint.text("regex", r"[ab]<tool_call>[0-9]<\|im_end\|>"), r"[ab]<tool_call>[0-9]<\|im_end\|>"),
    "a grammar": (Constraint.text("grammar", 'start: /[ab]/ "<tool_call>" /[0-9]/'), "[ab]<tool_call>[0-9]"),
    "a grammar with options": (
        Constraint.text("grammar", '%llguidance {}\nstart: "a<tool_call>" /[0-9]/'), "a<tool_call>[0-9]",
    ),
    "beside a regex": (
        tagged({"type": "sequence", "elements": [{"type": "const_string", "value": "<tool_call>"}, DIGITS]}),
        "<tool_call>[0-9]{3}",
    ),
    "after a line break": (
        tagged({"type": "tag", "begin": "<tool_call>", "content": DIGITS, "end": "\n</tool_call>"}),
        "<tool_call>[0-9]{3}\n</tool_call>",
    ),
    "an end of two": (
        tagged({"type": "tag", "begin": "<tool_call>", "content": DIGITS, "end": "</tool_call><think>"}),
        "<tool_call>[0-9]{3}</tool_call><think>",
    ),
    "within a tag": (
        tagged({"type": "tag", "begin": "a", "content": {"type": "json_schema", "json_schema": {"enum": ["<think>"]}},
                "end": "b"}),
        'a"<think>"b',
    ),
    "of a grammar within a tag": (
        tagged({"type": "tag", "begin": "a", "content": {"type": "grammar", "grammar": 'start: "x<think>" /[0-9]/'},
                "end": "b"}),
        "ax<think>[0-9]b",
    ),
}  # fmt: skip
"""Constraints of texts that have an added token's letters, and what these texts are."""


@pytest.mark.few(3)
@pytest.mark.parametrize("asked", LETTERS)
@pytest.mark.parametrize("name", ["demo", "qwen3", "llama3.2"])
def test_letters_of_an_added_token_can_be_written(name: str, asked: str) -> None:
    """llguidance spells what is forced with that token, which it takes for no text, and fails."""
    file = FILE if name == "demo" else material("tokenizers", name, "tokenizer.json")
    own, tokenizer = letter_grammars(name), Tokenizer.from_file(str(file))
    end, size = tokenizer.token_to_id("<|im_end|>") or END, tokenizer.get_vocab_size()
    constraint, expected = LETTERS[asked]
    matcher, said, draw = compiled(own, constraint, frozenset({end})), list[int](), random.Random(1)
    while not matcher.ended and len(said) < 100:
        said.append(draw.choice([each for each in legal(own, matcher, size) if each != end]))
        matcher.accept(said[-1:])
    assert re.fullmatch(expected, tokenizer.decode(said, skip_special_tokens=False))


@cache
def letter_grammars(name: str) -> Grammars:
    file = FILE if name == "demo" else material("tokenizers", name, "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(file))
    return Grammars(file, tokenizer.get_vocab_size(), (tokenizer.token_to_id("<|im_end|>") or END,))


def test_calls_are_forced_all_the_same() -> None:
    """Where a tag may be its token, too, nothing fails."""
    content = {"type": "json_schema", "json_schema": schema_of(RECORD)}
    matcher = compiled(GRAMMARS, tagged({"type": "tag", "begin": "<tool_call>\n", "content": content,
                                         "end": "\n</tool_call>"}))  # fmt: skip
    matcher.accept(TOKENIZER.encode("<tool_call>", add_special_tokens=False).ids)
    assert matcher.forced()


def test_a_stop_id_that_is_text_leaves_other_spellings() -> None:
    """It is legal as an end alone, so the tokenizer's own spelling cannot be written."""
    text, draw = "the sea side of the capital", random.Random(2)
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    stops = frozenset({END, ids[2]})
    matcher, said = compiled(GRAMMARS, Constraint.choice([text]), stops), list[int]()
    while not matcher.ended:
        said.append(draw.choice(legal(GRAMMARS, matcher, SIZE)))
        matcher.accept(said[-1:])
    assert TOKENIZER.decode(said) == text
    assert len(TOKENIZER.decode(ids[2:3])) > 2
    assert not stops & set(said)
