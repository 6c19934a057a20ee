"""The schemas inside a schema: where they stand, and a copy in which each is changed."""

from collections.abc import Callable, Iterator
from typing import Any

Path = tuple[str, ...]
Schema = Any
"""A JSON Schema: an object or a boolean. What a client sends in its place may be anything."""
Object = dict[str, Any]

_OF_MANY = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_OF_ONE = (
    "items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_OF_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
CONSTRAINTS: frozenset[str] = frozenset((
    "$dynamicRef", "$recursiveRef", "$ref", "additionalItems", "additionalProperties", "allOf", "anyOf", "const",
    "contains", "dependencies", "dependentRequired", "dependentSchemas", "else", "enum", "exclusiveMaximum",
    "exclusiveMinimum", "format", "if", "items", "maxContains", "maxItems", "maxLength", "maxProperties", "maximum",
    "minContains", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "not", "oneOf", "pattern",
    "patternProperties", "prefixItems", "properties", "propertyNames", "required", "then", "type", "unevaluatedItems",
    "unevaluatedProperties", "uniqueItems",
))  # fmt: skip
"""Keywords that constrain; others are annotations, which JSON Schema allows to be of any name."""


def subschemas(schema: Schema) -> Iterator[tuple[Path, Schema]]:
    """Yield the schemas directly inside a schema, with the way to each."""
    if not isinstance(schema, dict):
        return
    for key in _OF_ONE:
        if isinstance(schema.get(key), dict | bool):
            yield (key,), schema[key]
    for key in _OF_MANY:
        if isinstance(schema.get(key), dict):
            yield from (((key, name), inner) for name, inner in schema[key].items() if not _are_names(key, inner))
    for key in _OF_LISTS:
        if isinstance(schema.get(key), list):
            yield from (((key, str(number)), inner) for number, inner in enumerate(schema[key]))


def _are_names(key: str, inner: Any) -> bool:
    """Return True if a dependency is a list of keys, not a schema."""
    return key == "dependencies" and isinstance(inner, list)


def with_subschemas(schema: Object, change: Callable[[Schema], Schema]) -> Object:
    """Return a copy in which each schema directly inside is changed."""
    return with_placed(schema, lambda inner, _: change(inner))


def with_placed(schema: Object, change: Callable[[Schema, Path], Schema]) -> Object:
    """Return a copy in which each schema directly inside is changed, which `change` gets with the way to it."""
    return {key: _changed(key, value, change) for key, value in schema.items()}


def _changed(key: str, value: Any, change: Callable[[Schema, Path], Schema]) -> Any:
    if key in _OF_MANY and isinstance(value, dict):
        return {name: change(inner, (key, name)) for name, inner in value.items()}
    if key in _OF_LISTS and isinstance(value, list):
        return [change(inner, (key, str(number))) for number, inner in enumerate(value)]
    return change(value, (key,)) if key in _OF_ONE else value


def without(schema: Object, *keywords: str) -> Object:
    """Return a copy without these keywords."""
    return {key: value for key, value in schema.items() if key not in keywords}


def with_also(schema: Object, *parts: Schema) -> Object:
    """Return a copy that these schemas constrain, too."""
    return {**schema, "allOf": [*schema.get("allOf", ()), *parts]}


def constraints_of(schema: Object) -> frozenset[str]:
    """Return the keywords in a schema that constrain."""
    return CONSTRAINTS.intersection(schema)
