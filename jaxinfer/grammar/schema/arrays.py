"""Rules of arrays: tuples in either draft's words, and unique items of a few values."""

from itertools import accumulate, permutations
from math import perm
from typing import Any

from jaxinfer.grammar.schema.facts import key_of, listed_values, type_of, types_of
from jaxinfer.grammar.schema.negation import types_but
from jaxinfer.grammar.schema.references import Definitions
from jaxinfer.grammar.schema.walk import Object, Schema, constraints_of, with_also, without

_MOST_ARRAYS = 400
"""Arrays that unique items may be written out as."""
_MOST_VALUES = 64
"""Values that an item may have: of more, no two would be few enough."""


def tuples(schema: Object, definitions: Definitions) -> Schema:
    """A list in `items` as `prefixItems`, and `additionalItems` beside it as `items`: llguidance reads the newer
    keywords alone, or the older ones alone. Without such a list `additionalItems` says nothing."""
    rest = without(schema, "additionalItems")
    if not isinstance(schema.get("items"), list):
        return rest
    others = {"items": schema["additionalItems"]} if "additionalItems" in schema else {}
    return {**without(rest, "items"), "prefixItems": schema.get("prefixItems", schema["items"]), **others}


def unique_items(schema: Object, definitions: Definitions) -> Schema:
    """`uniqueItems` as the arrays that fit, where these are few."""
    if "uniqueItems" not in schema:
        return schema
    rest = without(schema, "uniqueItems")
    if not schema["uniqueItems"] or schema.get("maxItems", 2) < 2:
        return rest
    values = _values_of(schema.get("items", True), definitions, 8)
    if "prefixItems" in schema or values is None:
        return schema
    values = [*{key_of(each): each for each in values}.values()]
    sizes = range(schema.get("minItems", 0), min(len(values), schema.get("maxItems", len(values))) + 1)
    if any(count > _MOST_ARRAYS for count in accumulate(perm(len(values), size) for size in sizes)):
        return schema
    arrays = [[*chosen] for size in sizes for chosen in permutations(values, size)]
    if types_of(schema) == {"array"}:
        return with_also(without(rest, "items", "minItems", "maxItems"), {"enum": arrays})
    return with_also(
        without(rest, "items", "minItems", "maxItems"), {"anyOf": [types_but({"array"}), {"enum": arrays}]}
    )


def unevaluated_items(schema: Object, definitions: Definitions) -> Schema:
    """`unevaluatedItems` as `items`, where no other schema evaluates any. Rewrites what `tuples` has."""
    if "unevaluatedItems" not in schema:
        return schema
    rest = without(schema, "unevaluatedItems")
    if schema["unevaluatedItems"] is True or "items" in schema:
        return rest
    if constraints_of(rest) & _EVALUATING:
        return schema
    return {**rest, "items": schema["unevaluatedItems"]}


_EVALUATING = frozenset(("$dynamicRef", "$recursiveRef", "$ref", "allOf", "anyOf", "contains", "dependencies",
                         "dependentSchemas", "else", "if", "not", "oneOf", "then"))  # fmt: skip


def _values_of(schema: Schema, definitions: Definitions, depth: int) -> list[Any] | None:
    """Exactly the values that fit; None where they are many, or cannot be told."""
    if isinstance(schema, bool):
        return None if schema else []
    keywords = constraints_of(schema)
    if not depth or not definitions.may_look(schema):
        return None
    if keywords == {"$ref"}:
        target = definitions.target(schema)
        return None if target is None else _values_of(target, definitions, depth - 1)
    if keywords == {"anyOf"}:
        return _values_of_any(schema["anyOf"], definitions, depth - 1)
    if keywords in ({"const"}, {"enum"}, {"const", "type"}, {"enum", "type"}):
        types = types_of(schema)
        listed = listed_values(schema) or []
        return None if len(listed) > _MOST_VALUES else [each for each in listed if type_of(each) in types]
    if keywords == {"type"} and types_of(schema) <= {"null", "boolean"}:
        return [
            *((None,) if "null" in types_of(schema) else ()),
            *((True, False) if "boolean" in types_of(schema) else ()),
        ]
    if keywords == {"type", "minimum", "maximum"} and schema["type"] == "integer":
        return _integers(schema["minimum"], schema["maximum"])
    return None


def _values_of_any(schemas: list[Schema], definitions: Definitions, depth: int) -> list[Any] | None:
    found: list[Any] = []
    for each in schemas:
        values = _values_of(each, definitions, depth)
        if values is None or len(found) > _MOST_VALUES * _MOST_VALUES:
            return None
        found += values
    return found


def _integers(low: float, high: float) -> list[Any] | None:
    if high - low >= _MOST_VALUES:
        return None
    return [each for each in range(int(low) - 1, int(high) + 2) if low <= each <= high]
