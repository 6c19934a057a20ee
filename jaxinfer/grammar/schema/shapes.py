"""Shapes of keywords: a schema whose keywords have values that JSON Schema does not allow is refused by its place."""

import math
from collections.abc import Callable
from typing import Any

from jaxinfer.grammar.schema.references import pointer_to
from jaxinfer.grammar.schema.walk import Path, Schema, subschemas


def malformed(schema: Schema, at: Path = ()) -> str | None:
    """Return what is wrong in a schema, and where; None where nothing is."""
    if isinstance(schema, bool):
        return None
    if not isinstance(schema, dict):
        return f"a schema must be an object or a boolean, not {type(schema).__name__} (at {pointer_to(at)})"
    for keyword, (is_right, allowed) in _SHAPES.items():
        if keyword in schema and not is_right(schema[keyword]):
            return f"{keyword} must be {allowed} (at {pointer_to(at)})"
    found = (malformed(inner, at + path) for path, inner in subschemas(schema))
    return next((wrong for wrong in found if wrong), None)


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)


def _is_finite(value: Any) -> bool:
    """Return whether a value has none of the numbers that Python reads and JSON lacks: 1e999, Infinity and NaN."""
    if isinstance(value, dict | list):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_list_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _is_map_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _either(*checks: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: any(check(value) for check in checks)


_Shape = tuple[Callable[[Any], bool], str]
_SCHEMA: _Shape = (_is_schema, "a schema: an object or a boolean")
_SCHEMAS: _Shape = (_is_list_of(_is_schema), "a list of schemas")
_NAMED: _Shape = (_is_map_of(_is_schema), "an object of schemas")
_TEXT: _Shape = (_is_text, "a string")
_TEXTS: _Shape = (_is_list_of(_is_text), "a list of strings")
_NUMBER: _Shape = (_is_number, "a finite number")
_COUNT: _Shape = (_is_count, "an integer of at least 0")
_FLAG: _Shape = (lambda value: isinstance(value, bool), "true or false")
_SHAPES: dict[str, _Shape] = {
    **dict.fromkeys(("$defs", "definitions", "properties", "patternProperties", "dependentSchemas"), _NAMED),
    **dict.fromkeys(("additionalItems", "additionalProperties", "propertyNames", "not", "if", "then", "else",
                     "contains", "unevaluatedItems", "unevaluatedProperties"), _SCHEMA),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), _SCHEMAS),
    **dict.fromkeys(("$ref", "pattern", "format"), _TEXT),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), _NUMBER),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), (_either(_is_number, _FLAG[0]), "a finite number")),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
                     "minContains", "maxContains"), _COUNT),
    "const": (_is_finite, "a value whose numbers are finite"),
    "items": (_either(_is_schema, _SCHEMAS[0]), "a schema, or a list of schemas"),
    "dependencies": (_is_map_of(_either(_is_schema, _TEXTS[0])), "an object of schemas and lists of names"),
    "dependentRequired": (_is_map_of(_TEXTS[0]), "an object of lists of names"),
    "enum": (lambda value: isinstance(value, list) and _is_finite(value), "a list of values whose numbers are finite"),
    "required": _TEXTS,
    "type": (_either(_is_text, _TEXTS[0]), "a string or a list of strings"),
    "uniqueItems": _FLAG,
}  # fmt: skip
