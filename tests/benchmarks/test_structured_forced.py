"""Steps of answers are counted as by hand. Nothing is timed here."""

import json
from typing import Any

from tokenizers import Tokenizer

from benchmarks.structured_forced import Written, _written
from benchmarks.structured_parts.object_schemas import ObjectSchema
from jaxinfer.grammar.grammars import Grammars
from tests.material import REPOSITORY

FILE = REPOSITORY / "jaxinfer" / "demo" / "tokenizer.json"


def of(schema: dict[str, Any], instance: dict[str, Any]) -> tuple[Written | None, int]:
    tokenizer = Tokenizer.from_file(str(FILE))
    grammars = Grammars(FILE, tokenizer.get_vocab_size(), (0,))
    written = _written(grammars, tokenizer, ObjectSchema("it", schema, "", instance), "")
    return written, len(tokenizer.encode(json.dumps(instance), add_special_tokens=False).ids)


def test_a_text_without_a_choice_is_one_step() -> None:
    schema = {"type": "object", "properties": {"city": {"const": "Paris"}}, "required": ["city"]}
    written, tokens = of(schema | {"additionalProperties": False}, {"city": "Paris"})
    assert written is not None
    # The bracket that ends it stays to be drawn: nothing but an end may follow.
    assert (written.tokens, written.steps) == (tokens, 2)
    assert written.forced == tokens - 1


def test_where_there_is_a_choice_each_token_is_a_step() -> None:
    written, tokens = of({"type": "object", "additionalProperties": {"type": "string"}}, {"a b": "c d"})
    assert written is not None
    assert written.tokens - 1 <= written.steps <= written.tokens
    assert written.tokens >= tokens - 1


def test_an_answer_that_its_schema_does_not_allow_is_left_out() -> None:
    written, _ = of({"type": "object", "properties": {"n": {"type": "integer"}}}, {"n": "two"})
    assert written is None
