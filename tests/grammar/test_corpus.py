"""Schemas that pydantic, zod, MCP servers and guides to OpenAI's API write (`corpus/`): nearly all have a grammar."""

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jaxinfer.constraint import Constraint
from jaxinfer.errors import ParameterError
from jaxinfer.grammar.grammars import Grammars
from tests.grammar.calls import Writer
from tests.grammar.corpus import pydantic_types, tools
from tests.grammar.instances import RefusedError, accepts, matcher_of
from tests.grammar.walks import END, SIZE
from tests.grammar.walks import FILE as TOKENIZER_FILE

FILE = Path(__file__).parent / "corpus" / "schemas.jsonl"
REFUSED = {"pydantic: set of strings", "zod: duration", "zod: emoji"}
"""Items that differ of which there may be any; patterns that look ahead."""


@cache
def corpus() -> dict[str, Any]:
    lines = map(json.loads, FILE.read_text(encoding="utf-8").splitlines())
    return {f"{each['from']}: {each['name']}": each["schema"] for each in lines}


def test_the_corpus_has_a_grammar_for_97_in_100() -> None:
    refused = dict[str, str]()
    for name, schema in corpus().items():
        try:
            matcher_of(schema)
        except (RefusedError, ParameterError) as error:
            refused[name] = str(error)
    print(f"{len(corpus()) - len(refused)} of {len(corpus())} have a grammar; refused: {refused}")
    assert len(corpus()) >= 150
    assert len(refused) <= 0.03 * len(corpus())
    assert refused.keys() == REFUSED


def test_the_file_is_what_its_programs_write() -> None:
    """Those of them that run here: every type still has a schema."""
    written = {name.partition(": ")[2] for name in corpus()}
    assert {*pydantic_types.TYPES, *tools.SCHEMAS} <= written
    assert all(corpus()[f"{name.partition(' ')[0]}: {name}"] == schema for name, schema in tools.SCHEMAS.items())


VALUES = {
    "pydantic: counts": {"by_colour": {"red": 1}, "by_level": {"low": 0.5}, "by_id": {}, "by_day": {"2024-02-01": 2},
                         "by_code": {"DE": 3}, "by_name": {"x": [1]}, "free": {"any": None}},
    "pydantic: owner": {"pet": {"kind": "dog", "breed": "pug"}, "others": [{"kind": "shark", "depth": 1.5}]},
    "pydantic: event": {"name": "a", "at": "2024-02-01T10:00:00Z", "day": "2024-02-01", "clock": "10:00:00Z",
                        "length": "P1DT2H", "id": "3fa85f64-5717-4562-b3fc-2c963f66afa6"},
    "pydantic: ui": {"type": "div", "label": "", "children": [], "attributes": [{"name": "a", "value": "b"}]},
    "zod: shapes": [{"kind": "circle", "radius": 0.5}, {"kind": "path", "points": [[0, 1], [2, 3]]}],
    "zod: record of enum": {"open": 1, "closed": 2, "merged": 3},
    "zod: json": {"a": [1, None, {"b": "c"}]},
    "mcp: mcp just one": {"id": "x"},
    "mcp: mcp blocks": {"children": [{"type": "heading", "level": 2}, {"type": "divider"}]},
    "mcp: mcp condition": {"kind": "url", "url": "x"},
    "openapi: openapi pet": {"id": 1, "name": "x"},
    "openai: openai linked list": {"list": {"value": 1.5, "next": {"value": 2, "next": None}}},
}  # fmt: skip


def test_values_of_the_corpus_are_accepted() -> None:
    for name, value in VALUES.items():
        schema = corpus()[name]
        jsonschema.validate(value, schema)
        assert accepts(matcher_of(schema), json.dumps(value)), name
        wrong = [*value[:-1], {"kind": "other"}] if isinstance(value, list) else [value]
        assert not accepts(matcher_of(schema), json.dumps(wrong)) or name == "zod: json"


def written(names: list[str], seeds: range) -> int:
    """How many texts ended, of those that a model without any sense might write: each is an instance of its schema."""
    grammars, ended = Grammars(TOKENIZER_FILE, SIZE, (END,)), 0
    for name in names:
        schema = corpus()[name]
        older = any(words in json.dumps(schema) for words in ("draft-07", '"items": [', '"dependencies": '))
        validator = (jsonschema.Draft7Validator if older else jsonschema.Draft202012Validator)(schema)
        for seed in seeds:
            text = Writer(grammars, random.Random(seed), 250).write(Constraint.schema(schema, "x"))
            if text is not None:
                validator.validate(json.loads(text))
                ended += 1
    grammars.close()
    return ended


def test_what_is_written_by_some_of_the_corpus_is_valid() -> None:
    names = [name for name in corpus() if name not in REFUSED][::6]
    assert written(names, range(1)) >= 0.8 * len(names)


@pytest.mark.long
def test_what_is_written_by_the_corpus_is_valid() -> None:
    names = [name for name in corpus() if name not in REFUSED]
    assert written(names, range(3)) >= 2.5 * len(names)
