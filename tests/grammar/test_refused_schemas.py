"""Where a schema is refused, and bounds of integers that float64 has not."""

import json
import random
from typing import Any, NoReturn

import jsonschema
import pytest
from llguidance import LLExecutor

from jaxinfer.constraint import Constraint
from jaxinfer.errors import ParameterError
from jaxinfer.grammar import trial_worker
from jaxinfer.grammar.grammars import Grammars
from jaxinfer.grammar.schema.rewriting import rewritten
from jaxinfer.grammar.source import grammar_text
from jaxinfer.grammar.trial import Trial
from tests.grammar import instances
from tests.grammar.walks import END, FILE, SIZE, TOKENIZER, compiled, legal, walk


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(FILE, SIZE, (END,))


def objects(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"fine": {"type": "string"}, **properties}}


PLACES = {
    "#": {"type": "objekt"},
    "#/properties/a/items": objects(a={"type": "array", "items": {"type": "objekt"}}),
    "#/properties/a~1b": objects(**{"a/b": {"type": "objekt"}}),
    "#/$defs/x": objects(a={"$ref": "#/$defs/x"}) | {"$defs": {"x": {"type": "array", "contains": {}}}},
    "#/anyOf/1/properties/a": {"anyOf": [{"type": "null"}, objects(a={"contains": {}})]},
    "#/properties/b": objects(a={"$ref": "#"}, b={"contains": {}}),
    "#/properties/a": objects(a={"type": "string", "pattern": "[a-"}),
    "#/properties/a/prefixItems/1": objects(a={"type": "array", "prefixItems": [{}, {"uniqueItems": True}]}),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_refusal_tells_where(grammars: Grammars, place: str) -> None:
    with pytest.raises(ParameterError, match=r"^x: this json_schema is refused: ") as error:
        compiled(grammars, Constraint.schema(PLACES[place], "x"))
    assert str(error.value).endswith(f" (at {place})")


def test_a_refusal_within_a_tag_tells_where_in_its_schema(grammars: Grammars) -> None:
    tag = {"type": "json_schema", "json_schema": objects(a={"type": "objekt"}), "param": "tools[0].function.parameters"}
    with pytest.raises(ParameterError, match=r"^tools\[0\].function.parameters: .* \(at #/properties/a\)$"):
        compiled(grammars, Constraint("structural_tag", json.dumps(tag), "tool_choice"))


@pytest.mark.parametrize(
    "bounds",
    [
        {"minimum": 2**53 + 1, "maximum": 2**53 + 3},
        {"exclusiveMinimum": 2**53 + 1, "exclusiveMaximum": 2**53 + 5},
        {"minimum": 2**63 - 5000, "maximum": 2**63 - 1},
        {"minimum": 2**62, "maximum": 10**20},
        {"minimum": -(10**20), "maximum": -(2**63) + 3000},
        {"minimum": -(2**60) - 1, "maximum": -(2**60) + 129},
    ],
)
def test_large_integers_are_within_their_bounds(grammars: Grammars, bounds: dict[str, int]) -> None:
    schema = {"type": "integer", **bounds}
    matcher, draw = compiled(grammars, Constraint.schema(schema, "x")), random.Random(0)
    texts = [TOKENIZER.decode(walk(grammars, matcher.copy(), SIZE, draw, 60)) for _ in range(20)]
    for text in texts:
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("bounds", [{"minimum": 2**63}, {"minimum": 10**19, "maximum": 10**20}, {"maximum": -(10**19)}])
def test_no_integer_has_more_than_64_bits(grammars: Grammars, bounds: dict[str, int]) -> None:
    with pytest.raises(ParameterError, match=r"^x: .* refused: \w+: -?\d+ leaves no integer of 64 bits$"):
        compiled(grammars, Constraint.schema(objects(a={"type": "integer", **bounds}), "x"))


NOT_COMPUTED = {
    "a long constant": ({"not": {"const": "a" * 900}}, "not"),
    "a long value": ({"oneOf": [{"enum": ["a" * 900, "b"]}, {"type": "string"}]}, "oneOf"),
    "an endless length": ('{"type": "object", "properties": {"a": {"minLength": 1e999}}}',
                          "minLength must be an integer of at least 0 (at #/properties/a)"),
    "an endless value": ('{"oneOf": [{"enum": [1e999]}, {"const": 1}]}', "enum must be a list of values whose numbers "
                         "are finite (at #/oneOf/0)"),
    "an endless value inside": ('{"const": {"a": [-1e999]}}', "const must be a value whose numbers are finite"),
    "an endless bound": ('{"maximum": Infinity}', "maximum must be a finite number"),
    "no number": ('{"multipleOf": NaN}', "multipleOf must be a finite number"),
    "a bound beyond floats": (
        {"type": "array", "uniqueItems": True, "items": {"type": "integer", "minimum": 1.5, "maximum": 10**400}},
        "it cannot be computed: int too large to convert to float",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_COMPUTED)
def test_what_cannot_be_computed_is_refused_and_remembered(
    grammars: Grammars, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema, reason = NOT_COMPUTED[name]
    constraint, asked = Constraint.schema(schema, "x"), list[object]()
    monkeypatch.setattr(grammars, "_compiled", lambda one, own=grammars._compiled: asked.append(one) or own(one))
    for _ in range(2):
        with pytest.raises(ParameterError, match=r"^x: this json_schema is refused: ") as error:
            compiled(grammars, constraint)
        assert reason in str(error.value)
    assert len(asked) == 1


def test_recursion_of_the_rules_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever rule goes too deep."""

    def endless(schema: object, definitions: object) -> object:
        return endless(schema, definitions)

    monkeypatch.setattr("jaxinfer.grammar.schema.rewriting.RULES", (endless,))
    with pytest.raises(ParameterError, match=r"^x: this json_schema is refused: it cannot be computed: "):
        grammar_text(Constraint.schema({"type": "integer", "maximum": 77}, "x"), {})


def test_a_defect_of_a_rule_is_a_refusal_that_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(schema: dict[str, Any], definitions: object) -> object:
        return schema["nobody has this"]

    def ask(job: bytes) -> bytes:
        return json.dumps(trial_worker._answer_to(json.loads(job), known, executor)).encode()

    monkeypatch.setattr("jaxinfer.grammar.schema.rewriting.RULES", (broken,))
    known, executor = trial_worker._Known(instances.TOKENIZER, {}), LLExecutor(num_threads=1)
    trial = Trial({})
    monkeypatch.setattr(trial, "_start", lambda: None)
    monkeypatch.setattr(trial, "_ask", ask)
    with pytest.raises(
        ParameterError, match=r"^x: this json_schema is refused: it could not be compiled \(KeyError\)$"
    ):
        trial.run(Constraint.schema({"type": "integer"}, "x"))
    assert "in broken" in caplog.text


def test_a_copy_that_gets_no_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one may have all of it again."""

    class Ended(Exception):
        """Instead of this process."""

    def end() -> NoReturn:
        raise Ended

    def greedy(schema: object, definitions: object) -> object:
        raise MemoryError

    monkeypatch.setattr("jaxinfer.grammar.schema.rewriting.RULES", (greedy,))
    monkeypatch.setattr("os.abort", end)
    known, executor = trial_worker._Known(instances.TOKENIZER, {}), LLExecutor(num_threads=1)
    with pytest.raises(Ended):
        trial_worker._answer_to(
            {"constraint": {"kind": "json_schema", "value": "{}"}, "forces": True, "calls": []}, known, executor
        )


@pytest.mark.parametrize("length", [1, 40, 80])
def test_strings_but_one_may_be_as_long_as_a_pattern_can_tell(grammars: Grammars, length: int) -> None:
    matcher = compiled(grammars, Constraint.schema({"type": "string", "not": {"const": "a" * length}}, "x"))
    quote, letter = (grammars._tokenizer.tokenize_str(text) for text in ('"', "a"))
    matcher.accept(quote + letter * length)
    assert quote[0] not in legal(grammars, matcher, SIZE)
    matcher.accept(letter)
    assert quote[0] in legal(grammars, matcher, SIZE)


def test_what_is_no_bound_stays_as_it_is() -> None:
    """A property of such a name, constants, and bounds that float64 has."""
    schema = objects(minimum={"const": {"minimum": 2**53 + 2}}, a={"minimum": 5, "maximum": 2**60})
    assert json.loads(rewritten(json.dumps(schema)).text) == schema
