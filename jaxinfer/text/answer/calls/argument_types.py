"""Types of the arguments of functions, by which a form that does not quote strings is read."""

from collections.abc import Iterable, Mapping
from typing import Any

ArgumentTypes = Mapping[str, Mapping[str, frozenset[str]]]
"""JSON's types that an argument may have, by the name of its function and its own; empty: nothing is known of them."""

ToolSchema = tuple[str, Mapping[str, Any] | None]
"""A function's name, and the JSON Schema of its arguments."""


def schemas_of(tools: Iterable[Mapping[str, Any]]) -> list[ToolSchema]:
    """The schemas of tools in OpenAI's form, which were checked."""
    return [(tool["function"]["name"], tool["function"].get("parameters")) for tool in tools]


_MOST_SCHEMAS = 2000
"""Schemas of one tool that are looked at."""


def argument_types(tools: Iterable[ToolSchema]) -> ArgumentTypes:
    """Types of arguments, from the schemas of functions."""
    return {name: types_of_properties(schema or {}) for name, schema in tools}


def types_of_properties(schema: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Types of the properties of an object's schema, by their names."""
    properties, reader = schema.get("properties"), _Reader(schema)
    known = properties.items() if isinstance(properties, Mapping) else ()
    return {name: reader.types(of) for name, of in known}


def types_alone(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of the same types, and of nothing else."""
    return {"properties": {name: {"type": sorted(of)} for name, of in types_of_properties(schema).items() if of}}


class _Reader:
    """Reads schemas of one root. Each reference is followed once, and schemas beyond a bound are not looked at: a
    client's may refer to themselves, many times over."""

    def __init__(self, root: Mapping[str, Any]):
        self._root = root
        self._left = _MOST_SCHEMAS
        self._known: dict[str, frozenset[str]] = {}

    def types(self, schema: Any) -> frozenset[str]:
        """Types that a schema allows; empty: nothing is known."""
        self._left -= 1
        if not isinstance(schema, Mapping) or self._left < 0:
            return frozenset()
        given = schema.get("type")
        if isinstance(given, str | list):
            return frozenset([given] if isinstance(given, str) else [each for each in given if isinstance(each, str)])
        if isinstance(values := schema.get("enum"), list) or "const" in schema:
            return frozenset(map(_type, values if isinstance(values, list) else [schema["const"]]))
        if isinstance(place := schema.get("$ref"), str):
            return self._referred(place)
        for name in ("anyOf", "oneOf", "allOf"):
            if isinstance(choices := schema.get(name), list):
                parts = [self.types(each) for each in choices]
                return frozenset().union(*parts) if all(parts) or name == "allOf" else frozenset()
        return frozenset(kind for mark, kind in _MARKS.items() if mark in schema)

    def _referred(self, place: str) -> frozenset[str]:
        if place not in self._known:
            self._known[place] = frozenset()  # while it is followed
            self._known[place] = self.types(_found(place, self._root))
        return self._known[place]


_MARKS = {"properties": "object", "items": "array"}


def _found(place: str, root: Mapping[str, Any]) -> Any:
    """Look up a reference within the schema; None if it means nothing."""
    found: Any = root
    for name in place.removeprefix("#/").split("/"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _type(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (str, "string"), (int | float, "number"), (list, "array"), (dict, "object")):
        if isinstance(value, kind):
            return name
    return "null"
