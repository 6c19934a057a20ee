"""Which schemas are chosen, how texts are judged, and that the program writes what it promises."""

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from benchmarks.structured_parts.object_schemas import ANSWERS, FUNCTIONS, object_schemas, of_functions, strict_form
from benchmarks.structured_validity import _judged
from jaxinfer.constraint import Constraint
from jaxinfer.errors import ParameterError
from jaxinfer.text.request_output import CompletionOutput
from tests.material import REPOSITORY, material

PROGRAM = REPOSITORY / "benchmarks" / "structured_validity.py"


def accept_all(constraint: Constraint) -> None:
    """Nothing is refused."""


def test_every_schema_takes_objects_alone_and_the_lists_are_as_long_as_asked() -> None:
    lists = object_schemas(material(), 50, accept_all)
    assert {name: len(schemas) for name, schemas in lists.items()} == {"suite": 50, "functions": 50, "strict": 50}
    for schemas in lists.values():
        assert len({each.name for each in schemas}) == 50
        for each in schemas:
            judge = jsonschema.Draft202012Validator(each.schema)
            assert not any(judge.is_valid(other) for other in (0, "a", [], None, True)), each.name
    names = [each.name for each in lists["suite"]]
    assert names == sorted(names)


def test_what_is_refused_is_left_out() -> None:
    def accepts(constraint: Constraint) -> None:
        if "additionalProperties" in constraint.value:
            raise ParameterError(constraint.param, "no")

    lists = object_schemas(material(), 100, accepts)
    assert lists["suite"]
    assert not any("additionalProperties" in each.schema for each in lists["suite"])


def test_accepted_answers_fit_the_schemas_of_their_functions() -> None:
    """Types are Python's in the file; one in a hundred answers has a type of its own."""
    answers = [json.loads(line)["ground_truth"][0] for line in material(ANSWERS).read_text().splitlines()]
    fits = []
    for each, answer in zip(of_functions(material(FUNCTIONS), material(ANSWERS)), answers, strict=True):
        (arguments,) = answer.values()
        given = {name: values[0] for name, values in arguments.items() if values[0] != ""}
        fits.append(jsonschema.Draft202012Validator(each.schema).is_valid(given))
    assert sum(fits) >= 0.97 * len(fits)


def test_the_strict_form_closes_every_level() -> None:
    inner = {"type": "object", "properties": {"b": {"type": "string"}}}
    judge = jsonschema.Draft202012Validator(
        strict_form({"type": "object", "properties": {"a": {"type": "array", "items": inner}}})
    )
    assert judge.is_valid({"a": [{"b": ""}]})
    assert not any(judge.is_valid(wrong) for wrong in ({}, {"a": [{}]}, {"a": [], "c": 1}, {"a": [{"b": "", "c": 1}]}))


def test_texts_are_judged_by_their_schema_and_their_end() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    texts = [
        ("stop", '{"a": 1}'),
        ("stop", '{"a": "1"}'),
        ("stop", '{"a": 1'),
        ("length", '{"a": 1, "\\"'),
        ("length", "{"),
    ]
    found = _judged(
        schema, [CompletionOutput(i, text, [1, 2], finish_reason=end) for i, (end, text) in enumerate(texts)]
    )
    assert found.wrong == ['{"a": "1"}', '{"a": 1']
    assert (found.ends, found.tokens, found.in_string, found.by_length) == ({"stop": 3, "length": 2}, 10, 1, 0.4)
    assert not found.is_right


@pytest.mark.long
def test_it_generates_and_ends_with_the_headline(tmp_path: Path) -> None:
    file = tmp_path / "validity.json"
    command = [sys.executable, str(PROGRAM), "--json", str(file), "--schemas", "3", "--generations", "2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert result["compiled_after_ready"] == 0
    for name in ("suite", "functions", "strict"):
        assert len(result[name]["schemas"]) == 3
        assert result[name]["generation_tokens"] > 0
        assert all(sum(row["ends"].values()) == 2 and not row["wrong"] for row in result[name]["schemas"])
    assert done.stdout.splitlines()[-1].startswith("suite: 3 schemas, 6 generations: 0 invalid, 0 failed, ")
