"""Rules that rewrite schemas: what their grammars accept is what `jsonschema` calls valid, in both directions."""

import contextlib
import json
import os
import re
from typing import Any

import pytest
from llguidance import LLMatcher

from jaxinfer.constraint import Constraint
from jaxinfer.errors import ParameterError
from jaxinfer.grammar.schema.rewriting import UnfitError, rewritten
from jaxinfer.grammar.source import grammar_text
from tests.grammar.instances import TOKENIZER, Differences, RefusedError, accepts, differences, matcher_of
from tests.grammar.random_schemas import RandomSchemas

A_B = {"a": {"type": "integer"}, "b": {"type": ["integer", "string"]}}
CAT: dict[str, Any] = {"type": "object", "properties": {"a": {"const": "a"}, "b": True}, "required": ["a"]}
DOG: dict[str, Any] = {"type": "object", "properties": {"a": {"const": 1}, "b": True}, "required": ["a"]}
PETS = {"$defs": {"cat": CAT, "dog": DOG}}


def closed(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", "properties": A_B, "additionalProperties": False, **keywords}


def opened(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", "properties": A_B, **keywords}


EXACT: dict[str, Any] = {
    "a format that nobody knows": {"type": "string", "format": "uuid4"},
    "a tuple beside additionalItems": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}],
                                       "additionalItems": False},
    "a closed tuple": {"type": "array", "prefixItems": [{"type": "integer"}], "items": False},
    "dependencies on keys": {"dependencies": {"a": ["b"]}, "dependentRequired": {"a": ["b"]}, "type": "object",
                             "properties": A_B},
    "items that nothing evaluates": {"type": "array", "prefixItems": [{"type": "string"}], "unevaluatedItems": False},
    "no items that nothing evaluates": {"items": {"type": "string"}, "unevaluatedItems": False},
    "a constant among others": {"const": 1, "enum": [2, 1.0, "a"]},
    "no constant among others": {"type": ["integer", "null"], "anyOf": [{"const": 1, "enum": [2]}, {"type": "null"}]},
    "values twice": {"oneOf": [{"enum": [1, 1.0, True, 1]}, {"enum": ["a", "a", False]}]},
    "an annotation like a bound": {"oneOf": [{"type": "string", "exclusiveMinLength": 5},
                                             {"type": "string", "maxLength": 1}]},
    "annotations like bounds of items": {"oneOf": [{"type": "array", "exclusiveMinItems": 5},
                                                   {"type": "array", "maxItems": 1}]},
    "an $id inside": {"properties": {"a": {"$id": "x", "type": "integer"}, "b": {"$ref": "#/properties/a"}}},
    "an $id with references of its own": {
        "$defs": {"b": {"type": "boolean"}},
        "type": "object",
        "properties": {"a": {"$id": "x", "$defs": {"b": {"type": "null"}}, "not": {"$ref": "#/$defs/b"}}},
    },
    "a definition below an $id": {
        "$ref": "#/$defs/a/properties/x",
        "$defs": {
            "b": {"type": "boolean"},
            "a": {
                "$id": "urn:a",
                "$defs": {"b": {"type": "string"}},
                "properties": {"x": {"not": {"$ref": "#/$defs/b"}}},
            },
        },
    },
    "additionalItems alone": {"type": "array", "additionalItems": False},
    "names of any kind": {"propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}},
    "names of an enum": {"type": "object", "propertyNames": {"enum": ["a", "b"]},
                         "additionalProperties": {"type": "integer"}},
    "names of a pattern": {"type": "object", "propertyNames": {"pattern": "^a"},
                           "additionalProperties": {"type": "integer"}},
    "names of a length": {"type": "object", "propertyNames": {"minLength": 1, "maxLength": 1}},
    "names by reference": {"type": "object", "propertyNames": {"$ref": "#/$defs/k"}, "$defs": {"k": {"enum": ["a"]}}},
    "names of either kind": {"type": "object", "propertyNames": {"anyOf": [{"const": "x"}, {"pattern": "^a"}]}},
    "names of a constant among others": {"type": "object", "propertyNames": {"const": "a", "enum": ["b", "a"]}},
    "names of no constant among others": {"type": "object", "propertyNames": {"const": "a", "enum": ["b"]}},
    "names of a kind that none has, or a pattern": {
        "type": "object", "propertyNames": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^a$"}]}},
    "names of no kind": {"type": "object", "propertyNames": {"anyOf": [{"type": "null"}, {"const": 1}]}},
    "names of a length that is written as a fraction": {"type": "object", "propertyNames": {"minLength": 2.0}},
    "names beside properties": opened(propertyNames={"enum": ["a", "x"]}),
    "no names": {"type": "object", "propertyNames": False},
    "names that are no strings": {"propertyNames": {"type": "integer"}},
    "one of references": {"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], **PETS},
    "one of a reference and null": {"oneOf": [{"$ref": "#/$defs/cat"}, {"type": "null"}], **PETS},
    "one of a nullable reference": {"oneOf": [{"type": "null"}, {"allOf": [{"$ref": "#/$defs/cat"}]}], **PETS},
    "one of numbers": {"oneOf": [{"const": 1}, {"const": 2}, {"enum": [3, "a"]}]},
    "one of ranges": {"oneOf": [{"type": "integer", "maximum": 0}, {"type": "integer", "minimum": 1}]},
    "one of what is required": opened(oneOf=[{"required": ["a"]}, {"required": ["b"]}]),
    "one of what overlaps": {"oneOf": [{"type": "string"}, {"enum": ["a", "b", None]}]},
    "one of a base": opened(required=["a"], oneOf=[{"properties": {"a": {"const": 1}}},
                                                   {"properties": {"a": {"const": 2}}}]),
    "one of all": {"oneOf": [True, {"type": "string"}, {"const": "a"}]},
    "dependentRequired": opened(dependentRequired={"a": ["b"]}),
    "dependentSchemas": opened(dependentSchemas={"a": {"properties": {"b": {"type": "string"}}}}),
    "dependentRequired of what has no order": {"dependentRequired": {"a": ["b"], "x": ["a"]}},
    "at least one of open ones": opened(minProperties=1),
    "at least two of open ones": opened(minProperties=2),
    "at least one of closed ones": closed(minProperties=1),
    "at least two of closed ones": closed(minProperties=2),
    "at least more than there are": {"anyOf": [closed(minProperties=3), {"type": "null"}]},
    "at least one beside what is required": closed(minProperties=1, required=["a"]),
    "at most one of closed ones": closed(maxProperties=1),
    "at most one of open ones": opened(maxProperties=1),
    "at most none": opened(maxProperties=0),
    "just two": opened(minProperties=2, maxProperties=2),
    "counts of what may be no object": {"properties": A_B, "minProperties": 1},
    "a few that differ": {"type": "array", "items": {"enum": ["a", "b", 1]}, "uniqueItems": True},
    "flags that differ": {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 1},
    "small integers that differ": {"items": {"type": "integer", "minimum": 1, "maximum": 3}, "uniqueItems": True},
    "at most one item": {"type": "array", "uniqueItems": True, "maxItems": 1},
    "items that may be equal": {"type": "array", "uniqueItems": False},
    "never": opened(properties={"a": {"not": {}}, "b": True}),
    "not a type": {"not": {"type": ["string", "object"]}},
    "not a string": {"not": {"enum": ["a", "ab", ""]}, "type": "string"},
    "not a number": {"not": {"const": 1}},
    "not a flag": {"not": {"const": True}},
    "not required": opened(**{"not": {"required": ["a", "b"]}}),
    "not of a value": {"not": {"properties": {"a": {"const": 1}}, "required": ["a"]}},
    "not not": {"not": {"not": {"type": "string"}}},
    "not of a reference": {"not": {"$ref": "#/$defs/k"}, "$defs": {"k": {"anyOf": [{"type": "string"}, {"const": 1}]}}},
    "if a value then a key": opened(**{"if": {"properties": {"a": {"const": 1}}, "required": ["a"]},
                                       "then": {"required": ["b"]}, "else": {"properties": {"b": False}}}),
    "if a type": {"if": {"type": "string"}, "then": {"minLength": 2}},
    "if alone": {"if": {"type": "string"}, "type": "integer"},
    "then alone": {"then": {"type": "string"}, "type": "integer"},
    "unevaluated properties": {"allOf": [{"$ref": "#/$defs/k"}], "properties": {"b": True}, "type": "object",
                               "unevaluatedProperties": False, "$defs": {"k": {"properties": {"a": True}}}},
    "patterns around a choice": {"patternProperties": {"^a": {"type": "integer"}}, "type": "object",
                                 "anyOf": [{"required": ["a"]}, {"required": ["ab"]}], "additionalProperties": False},
    "items around a choice": {"prefixItems": [{"type": "integer"}], "type": "array", "allOf": [{"minItems": 1}],
                              "items": {"type": "string"}},
    "just above an integer": {"type": "number", "exclusiveMinimum": 1, "maximum": 1.5},
    "just below zero": {"type": "number", "exclusiveMaximum": 0, "minimum": -0.5},
    "a bracket in a class": {"type": "string", "pattern": "^[[:ab]"},
    "operators in a class": {"type": "string", "pattern": "^[ab&&b]+$"},
    "references into properties": {"type": "object", "properties": {"a": {"oneOf": [{"type": "integer"}]},
                                   "b": {"$ref": "#/properties/a/oneOf/0"}}},
    "a reference out of definitions": {"$ref": "#/components/x", "components": {"x": closed(minProperties=1)}},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Possible")  # of Python, whose classes may come to mean more
@pytest.mark.parametrize("name", EXACT)
def test_a_rule_is_exact(name: str) -> None:
    assert differences(EXACT[name]) == Differences([], [])


def test_tuples_hold_in_the_words_of_all_drafts() -> None:
    """Of drafts up to 2019-09, `items` is a list, and `unevaluatedItems` is of others."""
    draft = "https://json-schema.org/draft/2019-09/schema"
    one = {"type": "array", "items": [{"type": "string"}]}
    for others, taken, left in (
        ({"unevaluatedItems": False}, ['["a"]', "[]"], ['["a",1]', "[1]"]),
        ({"unevaluatedItems": {"type": "integer"}}, ['["a",1]', '["a"]'], ['["a","b"]']),
        ({"unevaluatedItems": False, "additionalItems": {"type": "integer"}}, ['["a",1]'], ['["a","b"]']),
        ({"unevaluatedItems": False, "prefixItems": [{"type": "string"}]}, ['["a"]'], ['["a",1]']),
    ):
        matcher = matcher_of({"$schema": draft, **one, **others})
        assert [accepts(matcher, each) for each in (*taken, *left)] == [*(True for _ in taken), *(False for _ in left)]
    for draft in ("http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2019-09/schema"):
        older = {"$schema": draft, "type": "array", "items": [{"type": "integer"}, {"type": "string"}]}
        newer = {"$schema": draft, "type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}
        for schema in (older, {**older, "additionalItems": False}, {**newer, "additionalItems": False}):
            matcher = matcher_of(schema)
            assert accepts(matcher, '[1,"a"]')
            assert not accepts(matcher, '["a",1]')
        assert not accepts(matcher_of({**older, "additionalItems": False}), '[1,"a",2]')


PATTERNS = {
    "^a.b$": (["axb", "aéb", "a b"], ["a\rb", "a\nb", "a\u2028b", "a\u2029b"]),
    "^a[.]b$": (["a.b"], ["axb"]),
    r"^a\.b$": (["a.b"], ["axb"]),
    "^(?:[]a]|b)$": (["b"], ["]", "a"]),
    "^[^]$": (["a", "]", "\n"], ["", "ab"]),
    "^[^]a]$": (["xa]"], ["x", "]"]),
    "(?s)^a.b$": (["axb", "a\rb", "a\nb"], ["ab"]),
    "^(?:a.|(b))$": (["ax", "b"], ["a\r"]),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_means_what_javascript_means_by_it(pattern: str) -> None:
    """`.` ends at four letters, `[]` is empty, and `[^]` is any letter."""
    taken, left = PATTERNS[pattern]
    matcher = matcher_of({"type": "string", "pattern": pattern})
    for each in (*taken, *left):
        assert accepts(matcher, json.dumps(each, ensure_ascii=False)) == (each in taken), each


REFUSED = {
    "many that differ": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
    "not an integer": {"not": {"type": "integer"}},
    "not a pattern": {"not": {"pattern": "^a"}},
    "one of what overlaps, with no way to say it": {"oneOf": [{"pattern": "^a"}, {"pattern": "b$"}]},
    "names of unknown kind": {"type": "object", "propertyNames": {"not": {"pattern": "^a"}}},
    "what an array contains": {"type": "array", "contains": {"type": "string"}},
    "a constant that is rounded": {"const": 2**53 + 1},
    "a constant that would be rounded to another": {"const": 2**53, "enum": [2**53 + 1]},
    "an $id that is referred to": {
        "$ref": "urn:a",
        "$defs": {
            "b": {"type": "boolean"},
            "a": {"$id": "urn:a", "$defs": {"b": {"type": "string"}}, "not": {"$ref": "#/$defs/b"}},
        },
    },
    "an $id where no schema stands": {
        "$ref": "#/x/a",
        "x": {"a": {"$id": "urn:a", "$defs": {"b": {}}, "not": {"$ref": "#/$defs/b"}}},
    },
    "a reference to nothing": {
        "$defs": {"a": {"properties": {"b": {"type": "string"}}}, "b": {"type": "boolean"}},
        "properties": {"v": {"not": {"$ref": "#/$defs/a/properties/b"}}, "w": {"$ref": "#/nowhere"}},
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_rule_can_say_is_refused(name: str) -> None:
    with pytest.raises((RefusedError, ParameterError)):
        matcher_of(REFUSED[name])


def compare(seeds: range) -> tuple[int, dict[str, Differences]]:
    """How many schemas were not refused, and those whose grammars differ from them."""
    taken, wrong = 0, dict[str, Differences]()
    for seed in seeds:
        schema = RandomSchemas(seed).schema()
        try:
            found = differences(schema)
        except (RefusedError, ParameterError):
            continue
        taken += 1
        if found != Differences([], []):
            wrong[json.dumps(schema)] = found
    return taken, wrong


@pytest.mark.filterwarnings("ignore:Possible")
def test_random_schemas_accept_what_is_valid() -> None:
    taken, wrong = compare(range(250))
    assert wrong == {}
    assert taken >= 75


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Possible")
def test_many_random_schemas_accept_what_is_valid() -> None:
    seed = int(os.environ.get("JAXINFER_TEST_SEED", "0")) + 1000
    taken, wrong = compare(range(seed, seed + 5000))
    assert wrong == {}
    assert taken >= 1500


KEYS = {
    "of properties": ({"properties": {"a": {"type": "integer"}}}, r'{"\u0061":"x"}', '{"a":1}'),
    "of patterns": ({"patternProperties": {"^a": {"type": "integer"}}}, r'{"\u0061b":"x"}', '{"ab":1}'),
    "with a line break": ({"properties": {"a\n": {"type": "integer"}}}, r'{"a\u000a":"x"}', r'{"a\n":1}'),
    "that are forbidden": ({"properties": {"a": False}}, r'{"\u0061":1}', '{"b":1}'),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_in_other_letters_is_no_other_key(name: str) -> None:
    schema, wrong, right = KEYS[name]
    matcher = matcher_of({"type": "object", **schema})
    assert not accepts(matcher, wrong)
    assert accepts(matcher, right)


def test_parts_of_a_duration_are_numbers_that_programs_can_hold() -> None:
    matcher = matcher_of({"type": "string", "format": "duration"})
    for text in ("P3W", "P1Y2M3DT4H5M6S", "P999999Y999999M999999DT999999H999999M999999S"):
        assert accepts(matcher, f'"{text}"')
    for text in ("P1234567W", "PT8108121818121H", "P", "P1S"):
        assert not accepts(matcher, f'"{text}"')


def test_control_characters_are_written_by_number_where_constants_have_them() -> None:
    for schema in ({"const": "a\x00b"}, {"type": "string", "pattern": r"^a\x00b$"}):
        matcher = matcher_of(schema)
        assert accepts(matcher, r'"a\u0000b"')
        assert not accepts(matcher, '"ab"')
    with pytest.raises(ParameterError, match="control characters"):
        matcher_of({"type": "object", "properties": {"a": {"const": "a\x00b"}}})


@pytest.mark.parametrize("options", [{"coerce_one_of": True}, {"lenient": True}, {"whitespace_pattern": "x*"}])
def test_options_of_llguidance_are_no_clients(options: dict[str, Any]) -> None:
    """At the top and inside; a property of that name is one."""
    overlapping = {"oneOf": [{"pattern": "^a"}, {"pattern": "b$"}], "x-guidance": options}
    for schema in (overlapping, {"properties": {"a": overlapping}}, {"$ref": "#/$defs/a", "$defs": {"a": overlapping}}):
        with pytest.raises(RefusedError):
            matcher_of(schema)
    assert not accepts(matcher_of({"type": "array", "x-guidance": options}), "[x]")
    named = {"type": "object", "properties": {"x-guidance": {"type": "integer"}}, "required": ["x-guidance"]}
    assert accepts(matcher_of(named), '{"x-guidance":1}')
    assert not accepts(matcher_of(named), '{"x-guidance":"a"}')


LINK: dict[str, Any] = {"type": "object", "properties": {"a": {"$ref": "#/$defs/link"}}, "required": ["a"]}
ENDLESS: dict[str, Any] = {
    "an object in itself": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "by way of another": {"$ref": "#/$defs/link", "$defs": {"link": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": LINK}},
    "items": {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    "a choice of none": {"anyOf": [LINK, {"$ref": "#"}], "$defs": {"link": LINK}},
    "what is counted": {"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 1},
    "a pair": {"type": "array", "prefixItems": [True, {"$ref": "#"}], "minItems": 2},
}


@pytest.mark.parametrize("name", ENDLESS)
def test_recursion_that_cannot_end_is_refused(name: str) -> None:
    with pytest.raises(ParameterError, match="no text that ends fits it"):
        matcher_of(ENDLESS[name])


def test_a_branch_that_cannot_end_is_not_begun() -> None:
    matcher = matcher_of({"type": "object", "properties": {"a": {"$ref": "#/$defs/link"}, "b": {"type": "integer"}},
                          "additionalProperties": False, "$defs": {"link": LINK}})  # fmt: skip
    assert accepts(matcher, '{"b":1}')
    begun = TOKENIZER.tokenize_str('{"a')
    assert matcher.try_consume_tokens(begun) < len(begun)


TREE: dict[str, Any] = {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
                        "required": ["a"], "additionalProperties": False}  # fmt: skip


def test_recursion_that_can_end_is_kept() -> None:
    assert accepts(matcher_of(TREE), '{"a":{"a":{"a":null}}}')
    listed = {"type": "array", "items": {"$ref": "#"}}
    assert accepts(matcher_of(listed), "[[],[[]]]")


MALFORMED = {
    "required": ({"type": "object", "properties": {"a": {"required": True}}}, "#/properties/a"),
    "properties": ({"properties": ["a"]}, "#"),
    "$defs": ({"$defs": [1], "$ref": "#/$defs/a"}, "#"),
    "definitions": ({"definitions": {"a": 1}, "$ref": "#/definitions/b"}, "#"),
    "additionalItems": ({"items": [{}], "additionalItems": [{"maxLength": [1]}]}, "#"),
    "anyOf": ({"items": {"anyOf": {"type": "string"}}}, "#/items"),
    "minLength": (
        {"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"a": {"minLength": -1}}}}},
        "#/$defs/x/properties/a",
    ),
}


@pytest.mark.parametrize("keyword", MALFORMED)
def test_a_keyword_of_another_shape_is_named_with_its_place(keyword: str) -> None:
    schema, place = MALFORMED[keyword]
    with pytest.raises(
        ParameterError,
        match=rf"^x: this json_schema is refused: {re.escape(keyword)} must be .* \(at {re.escape(place)}\)$",
    ):
        matcher_of(schema)


@pytest.mark.parametrize("schema", [{"$defs": None, "$ref": "#/$defs/a"}, {"$defs": None, "$ref": "x"}])
def test_no_definitions_are_no_object(schema: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r"^x: this json_schema is refused: \$defs must be an object of schemas"):
        matcher_of(schema)


def test_schemas_inside_of_grammars_are_rewritten_too() -> None:
    """In Lark's `%json`; what looks like one in a string, a regex or a comment is text."""
    pair = '{"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "additionalItems": false'
    for options in ("}", ', "x-guidance": {"lenient": true}}'):
        lark = f'start: "x" y\ny: %json {pair}{options}\n// %json {{"a\n'
        matcher = LLMatcher(TOKENIZER, grammar_text(Constraint.text("grammar", lark, "x"), {}), log_level=0)
        assert accepts(matcher, 'x[1,"a"]')
        assert not accepts(matcher, 'x["a",1]')
    for lark, text in (('start: "%json {1}"', "%json {1}"), ("start: /%json [{]1}/", "%json {1}")):
        matcher = LLMatcher(TOKENIZER, grammar_text(Constraint.text("grammar", lark, "x"), {}), log_level=0)
        assert accepts(matcher, text)
    with pytest.raises(ParameterError, match=r"^x: this json_schema is refused: no text that ends fits it"):
        grammar_text(Constraint.text("grammar", 'start: %json {"$ref": "#"}', "x"), {})


MANY = 300
LARGE: dict[str, Any] = {
    "constants": {"oneOf": [{"const": f"v{each}"} for each in range(MANY)]},
    "kinds": {"oneOf": [*({"$ref": f"#/$defs/d{each}"} for each in range(MANY)), {"type": "null"}], "$defs": {
        f"d{each}": {"type": "object", "properties": {"k": {"const": each}}, "required": ["k"]} for each in range(MANY)
    }},
}  # fmt: skip


@pytest.mark.parametrize(("name", "right", "wrong"), [
    ("constants", '"v299"', '"v300"'), ("kinds", '{"k":299}', '{"k":300}'), ("kinds", "null", "{}"),
])  # fmt: skip
def test_a_choice_of_many_is_seen_to_be_one(name: str, right: str, wrong: str) -> None:
    matcher = matcher_of(LARGE[name])
    assert accepts(matcher, right)
    assert not accepts(matcher, wrong)


def tangled(key: str, links: int, width: int) -> dict[str, Any]:
    """Definitions each of which refers so often to all: ways through them are without number."""
    return {f"d{each}": {key: [{"$ref": f"#/$defs/d{other}"} for other in range(links)] * width, "minLength": each}
            for each in range(links)}  # fmt: skip


@pytest.mark.parametrize("key", ["allOf", "anyOf", "oneOf", "not"])
def test_rules_end_however_definitions_are_tangled(key: str) -> None:
    """After so many looks what is not known stays unknown: the schema is refused, or becomes another that may be."""
    definitions = tangled("anyOf" if key == "not" else key, 8, 3)
    inner: Any = {"$ref": "#/$defs/d0"}
    for schema in ({"not": inner}, {"oneOf": [inner, {"$ref": "#/$defs/d1"}]}, {"propertyNames": inner}, {"if": inner}):
        with contextlib.suppress(UnfitError):
            assert rewritten(json.dumps({**schema, "$defs": definitions})).text
