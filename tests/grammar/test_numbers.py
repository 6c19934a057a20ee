"""Numbers of JSON: a model that writes digits as long as it may comes to an end, and to what a float64 holds."""

import json
import math
import random
import re

import numpy as np
import pytest

from jaxinfer.constraint import Constraint
from jaxinfer.grammar.grammars import Grammars
from jaxinfer.grammar.numbers import Written, digits_left
from tests.grammar.calls import constraint_of
from tests.grammar.walks import END, FILE, SIZE, TOKENIZER, compiled, legal

GRAMMARS = Grammars(FILE, SIZE, (END,))
DIGITS = [
    id for id in range(SIZE) if (TOKENIZER.id_to_token(id) or "").isdecimal() and TOKENIZER.decode([id]).isascii()
]
SHAPES = {
    "number": {"type": "number"}, "integer": {"type": "integer"}, "anything": {"type": "array", "minItems": 1},
    "a bounded number": {"type": "number", "minimum": 0}, "a bounded integer": {"type": "integer", "maximum": -1},
    "a part of 0.001": {"type": "number", "multipleOf": 0.001},
    "of an object": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
}  # fmt: skip


def rambled(constraint: Constraint, seed: int, begun: str = "") -> str:
    """A text of digits wherever they may come, and else of what else may."""
    matcher, draw = compiled(GRAMMARS, constraint), random.Random(seed)
    ids = list[int]()
    if begun:
        ids = GRAMMARS._tokenizer.tokenize_str(begun)
        matcher.accept(ids)
    while not matcher.ended and len(ids) < 200 and not GRAMMARS._tokenizer.decode_str(ids).endswith((",", "]", "}")):
        allowed = legal(GRAMMARS, matcher, SIZE)
        digits = [id for id in allowed if id in DIGITS]
        number = [id for id in allowed if TOKENIZER.decode([id]) in (".", "e", "E", "-", "[", '"')]
        token = draw.choice(digits if digits and (draw.random() < 0.95 or not number) else number or allowed)
        if token == END:
            break
        matcher.accept([token])
        ids.append(token)
    assert len(ids) < 200
    return GRAMMARS._tokenizer.decode_str(ids)


@pytest.mark.parametrize("shape", SHAPES)
def test_numbers_come_to_an_end(shape: str) -> None:
    begun = {"anything": "[1", "of an object": '{"a": 1'}.get(shape, "")
    for seed in range(5):
        text = rambled(Constraint.schema(SHAPES[shape], "x"), seed, begun)
        (number,) = re.findall(r"-?[0-9][^], }]*", text)
        assert len(number) < 80
        assert math.isfinite(json.loads(number))


def test_numbers_of_calls_come_to_an_end() -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "number"}},
                                            "required": ["a"], "additionalProperties": False}}  # fmt: skip
    constraint = constraint_of([function], tool_choice="required")
    assert constraint is not None
    begun = '<tool_call>\n{"name": "f", "arguments": {"a": 0.5'
    assert len(rambled(constraint, 1, begun)) < 150


@pytest.mark.parametrize("text", ["6.02e23", "9.10938356e-31", "18446744073709551615", "-9223372036854775808", "1e279",
                                  "1.7976931348623157e+200", "0.0000012345678901234567", "5e-299"][:-1])  # fmt: skip
def test_what_a_double_or_an_integer_needs_may_be_written(text: str) -> None:
    """Each letter by itself."""
    matcher = compiled(GRAMMARS, Constraint.schema({"type": ["number", "integer"]}, "x"))
    for letter in text:
        (token,) = GRAMMARS._tokenizer.tokenize_str(letter)
        assert token in legal(GRAMMARS, matcher, SIZE), letter
        matcher.accept([token])
    assert END in legal(GRAMMARS, matcher, SIZE)


@pytest.mark.parametrize("schema", [
    {"const": 1e25}, {"type": "integer", "minimum": 10**17},
    {"type": "string", "pattern": "^[0-9]{40}$"}, {"type": "string", "pattern": "^[0-9]{30,40}$"},
])  # fmt: skip
def test_what_a_schema_asks_for_is_not_cut(schema: dict[str, object]) -> None:
    matcher = compiled(GRAMMARS, Constraint.schema(schema, "x"))
    if "pattern" in schema:
        matcher.accept(GRAMMARS._tokenizer.tokenize_str('"'))
        for _ in range(30):
            token = next(id for id in legal(GRAMMARS, matcher, SIZE) if TOKENIZER.decode([id]) == "7")
            matcher.accept([token])
    else:
        assert legal(GRAMMARS, matcher, SIZE)


def test_digits_of_strings_are_no_numbers() -> None:
    """Each letter by itself, of a pattern that allows no quote and no `z`; an escape does not end the string."""
    for pattern, text in ((r"^[0-9a-f: ]{20}$", '"ab 12e4567,:890123 4'), (r'^"?[0-9 ]{31}$', '"\\" ' + "7" * 30)):
        matcher = compiled(GRAMMARS, Constraint.schema({"type": "string", "pattern": pattern}, "x"))
        for letter in text.replace(",", ":"):
            (token,) = GRAMMARS._tokenizer.tokenize_str(letter)
            assert token in legal(GRAMMARS, matcher, SIZE), letter
            matcher.accept([token])


def test_numbers_after_strings_and_open_quotes_come_to_an_end() -> None:
    """Quotes in keys and values close; one in free text before a call is forgotten."""
    pair = {"type": "object", "properties": {"a": {"const": 'b"\\'}, "n": {"type": "integer"}}, "required": ["a", "n"]}
    assert len(rambled(Constraint.schema(pair, "x"), 1, '{"a": "b\\"\\\\", "n": 1')) < 60
    function = {"name": "f", "strict": True, "parameters": {
        "type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"], "additionalProperties": False,
    }}  # fmt: skip
    constraint = constraint_of([function])
    assert constraint is not None
    begun = 'It is 5" wide<tool_call>\n{"name": "f", "arguments": {"a": 0.5'
    assert len(rambled(constraint, 1, begun)) < 170


def test_strings_are_followed_across_tokens() -> None:
    pieces = {(b'"a',): True, (b'"a', b'"'): False, (b'"\\', b'"'): True, (b'"\\\\', b'"'): False,
              (b'"\\', b'\\', b'"'): False, (b'5" ', b"\n1"): False, (b'"a": "', b"1"): True}  # fmt: skip
    for texts, inside in pieces.items():
        written = Written()
        for text in texts:
            written = written.then(text)
        assert written.in_string == inside, texts


def test_free_text_beside_calls_may_have_any_digits() -> None:
    function = {"name": "f", "strict": True, "parameters": {"type": "object", "properties": {},
                                                            "additionalProperties": False}}  # fmt: skip
    constraint = constraint_of([function])
    assert constraint is not None
    matcher = compiled(GRAMMARS, constraint)
    for _ in range(50):
        token = next(id for id in legal(GRAMMARS, matcher, SIZE) if TOKENIZER.decode([id]) == "3")
        matcher.accept([token])


def test_digits_are_counted_by_parts() -> None:
    counts = {b"": None, b'{"a": ': None, b'"12': None, b"[1": 19, b"-12": 18, b"x12": None, b"1.": 24, b"1.5": 23,
              b"1e": 2, b"1e-3": 1, b"1e27": 1, b"1e28": 0, b"1e279": 0, b"1" * 30: 0}  # fmt: skip
    assert {text: digits_left(text) for text in counts} == counts


def test_a_copy_counts_from_where_it_was_made() -> None:
    matcher = compiled(GRAMMARS, Constraint.schema({"type": "integer"}, "x"))
    nine = GRAMMARS._tokenizer.tokenize_str("9")
    for _ in range(20):
        matcher.accept(nine)
    rows = np.zeros((1, -(-SIZE // 32)), np.int32)
    assert GRAMMARS.fill([matcher.copy()], rows) == {}
    assert not set(np.flatnonzero(np.unpackbits(rows.view(np.uint8), bitorder="little"))) & {*DIGITS}
