"""Negation: the schema of all that does not fit another one, where it can be written without `not`."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from jaxinfer.grammar.schema.facts import TYPES, listed_values, type_of, types_of
from jaxinfer.grammar.schema.references import Definitions
from jaxinfer.grammar.schema.regexes import not_one_of
from jaxinfer.grammar.schema.walk import Object, Schema, constraints_of

_DEPTH = 8


def negated(schema: Schema, definitions: Definitions, depth: int = _DEPTH) -> Schema | None:
    """Return a schema that fits exactly what this one does not; None where there is no way to write it."""
    if isinstance(schema, bool):
        return not schema
    if not depth or not definitions.may_look(schema):
        return None
    keywords = constraints_of(schema)
    if not _NEGATIONS.keys() >= keywords:
        return None
    return _one_of_all([_NEGATIONS[each](schema, definitions, depth - 1) for each in sorted(keywords)])


def types_but(types: Iterable[str]) -> Schema:
    """Return the schema of all values of other types, each of `facts.TYPES`."""
    rest = TYPES.difference(types)
    names = [*sorted(rest - {"integer", "fraction"}), *(["number"] if "fraction" in rest else [])]
    return {"type": names} if names else False


def _one_of_all(parts: list[Schema | None]) -> Schema | None:
    """Return a schema of what fits one of several schemas, all of them known."""
    known = [each for each in parts if each is not None and each is not False]
    if len(known) + parts.count(False) < len(parts):
        return None
    return {"anyOf": known} if known else False


def _not_type(schema: Object, definitions: Definitions, depth: int) -> Schema | None:
    types = types_of(schema)
    return None if "integer" in types and "fraction" not in types else types_but(types)


def _not_listed(schema: Object, definitions: Definitions, depth: int) -> Schema | None:
    values = listed_values(schema)
    assert values is not None
    kinds = {type_of(each) for each in values}
    if kinds & {"array", "object"}:
        return None
    texts = [each for each in values if isinstance(each, str)]
    pattern = not_one_of(texts)
    if pattern is None:
        return None
    flags = [each for each in values if isinstance(each, bool)]
    numbers = [each for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
    others = [
        types_but({*kinds, *(("integer", "fraction") if numbers else ())}),
        *([{"type": "string", "pattern": pattern}] if texts else []),
        *([{"const": not flags[0]}] if len({*flags}) == 1 else []),
        *_between(sorted({*numbers})),
    ]
    return {"anyOf": others}


def _between(numbers: list[float]) -> list[Schema]:
    """The numbers between these, and beyond them; nothing where there are none."""
    if not numbers:
        return []
    inner = [{"exclusiveMinimum": low, "exclusiveMaximum": high} for low, high in pairwise(numbers)]
    ranges = [{"exclusiveMaximum": numbers[0]}, *inner, {"exclusiveMinimum": numbers[-1]}]
    return [{"type": "number", **each} for each in ranges]


def _not_required(schema: Object, definitions: Definitions, depth: int) -> Schema:
    lacking = [{"type": "object", "properties": {name: False}} for name in dict.fromkeys(schema["required"])]
    return {"anyOf": lacking} if lacking else False


def _not_properties(schema: Object, definitions: Definitions, depth: int) -> Schema | None:
    parts = list[Schema | None]()
    for name, inner in schema["properties"].items():
        other = negated(inner, definitions, depth)
        has_other: Schema = {"type": "object", "properties": {name: other}, "required": [name]}
        parts.append(has_other if other else other)
    return _one_of_all(parts)


def _not_not(schema: Object, definitions: Definitions, depth: int) -> Schema:
    return schema["not"]


def _not_any_of(schema: Object, definitions: Definitions, depth: int) -> Schema | None:
    parts = [negated(each, definitions, depth) for each in schema["anyOf"]]
    return None if None in parts else {"allOf": parts}


def _not_all_of(schema: Object, definitions: Definitions, depth: int) -> Schema | None:
    return _one_of_all([negated(each, definitions, depth) for each in schema["allOf"]])


def _not_referred(schema: Object, definitions: Definitions, depth: int) -> Schema | None:
    target = definitions.target(schema)
    return None if target is None else negated(target, definitions, depth)


def _not_within(kind: str, keyword: str, other: str, step: int) -> Callable[..., Schema | None]:
    """Return a schema of what lies beyond a bound, of the same type."""

    def beyond(schema: Object, *_: Any) -> Schema | None:
        bound = schema[keyword]
        if isinstance(bound, bool):
            return None
        return {"type": kind, other: bound + step} if bound + step >= 0 or not step else False

    return beyond


_NEGATIONS: dict[str, Callable[[Object, Definitions, int], Schema | None]] = {
    "$ref": _not_referred,
    "allOf": _not_all_of,
    "anyOf": _not_any_of,
    "const": _not_listed,
    "enum": _not_listed,
    "exclusiveMaximum": _not_within("number", "exclusiveMaximum", "minimum", 0),
    "exclusiveMinimum": _not_within("number", "exclusiveMinimum", "maximum", 0),
    "maxItems": _not_within("array", "maxItems", "minItems", 1),
    "maxLength": _not_within("string", "maxLength", "minLength", 1),
    "maximum": _not_within("number", "maximum", "exclusiveMinimum", 0),
    "minItems": _not_within("array", "minItems", "maxItems", -1),
    "minLength": _not_within("string", "minLength", "maxLength", -1),
    "minimum": _not_within("number", "minimum", "exclusiveMaximum", 0),
    "not": _not_not,
    "properties": _not_properties,
    "required": _not_required,
    "type": _not_type,
}
