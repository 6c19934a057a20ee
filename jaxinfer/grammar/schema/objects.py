"""Rules of objects: names, dependencies and counts of properties."""

from collections.abc import Iterable
from itertools import accumulate, combinations
from math import comb

from jaxinfer.grammar.schema.facts import types_of
from jaxinfer.grammar.schema.names import names_of, only
from jaxinfer.grammar.schema.negation import types_but
from jaxinfer.grammar.schema.references import Definitions
from jaxinfer.grammar.schema.walk import Object, Schema, constraints_of, with_also, without

_MOST_CHOICES = 128
"""Choices that a count of properties may become."""


def property_names(schema: Object, definitions: Definitions) -> Schema:
    """`propertyNames` as properties, patterns, and no others."""
    if "propertyNames" not in schema:
        return schema
    names = names_of(schema["propertyNames"], definitions)
    if names is None:
        return schema
    kind = {"type": "object"} if schema.get("type") == "object" else {}
    return with_also(without(schema, "propertyNames"), *({**kind, **only(each)} for each in names))


def dependencies(schema: Object, definitions: Definitions) -> Schema:
    """`dependentRequired`, `dependentSchemas` and `dependencies` as a choice: the key is absent, or all that it needs
    holds."""
    given = [(name, needed) for key in _DEPENDENCIES for name, needed in schema.get(key, {}).items()]
    if not any(key in schema for key in _DEPENDENCIES):
        return schema
    ordered = schema.get("properties", {})
    parts = [_depends(name, {"required": needed} if isinstance(needed, list) else needed, ordered)
             for name, needed in given]  # fmt: skip
    return with_also(without(schema, *_DEPENDENCIES), *parts)


_DEPENDENCIES = ("dependencies", "dependentRequired", "dependentSchemas")


def _depends(name: str, needed: Schema, ordered: Iterable[str]) -> Schema:
    """The key is written before or after what it needs, unless `properties` say where: keys of `required` alone are
    written in its order."""
    absent = {"properties": {name: False}}
    after = {"type": "object", "allOf": [needed], "required": [name]}
    before = {"type": "object", "required": [name], "allOf": [needed]}
    return {"anyOf": [absent, after] if name in ordered else [absent, after, before]}


def unevaluated_properties(schema: Object, definitions: Definitions) -> Schema:
    """`unevaluatedProperties` as `additionalProperties`, where all keys that are evaluated can be told."""
    if "unevaluatedProperties" not in schema:
        return schema
    rest = without(schema, "unevaluatedProperties")
    if schema["unevaluatedProperties"] is True:
        return rest
    names = _evaluated(rest, definitions, 8)
    if names is None:
        return schema
    return with_also(rest, {"properties": dict.fromkeys(names, True),
                            "additionalProperties": schema["unevaluatedProperties"]})  # fmt: skip


_PLAIN = frozenset(("$ref", "additionalProperties", "allOf", "maxProperties", "minProperties", "properties", "required",
                    "type"))  # fmt: skip


def _evaluated(schema: Schema, definitions: Definitions, depth: int) -> list[str] | None:
    """Keys that a schema evaluates; None where that depends on the instance."""
    if schema is True:
        return []
    if not depth or not isinstance(schema, dict) or not constraints_of(schema) <= _PLAIN:
        return None
    if schema.get("additionalProperties", False) is not False:
        return None
    inner = [*schema.get("allOf", ()), *([definitions.target(schema)] if "$ref" in schema else [])]
    found = [_evaluated(each, definitions, depth - 1) for each in inner]
    if None in found:
        return None
    return [*dict.fromkeys([*schema.get("properties", {}), *(name for names in found for name in names or ())])]


def property_counts(schema: Object, definitions: Definitions) -> Schema:
    """`minProperties` and `maxProperties` beside optional properties as choices of those that are there."""
    counts = _Counts(schema)
    if not counts.optional:
        return schema
    asked = {"minProperties": counts.at_least, "maxProperties": counts.at_most}
    said = {key: say(schema[key]) for key, say in asked.items() if key in schema}
    known = {key: part for key, part in said.items() if part is not None}
    return with_also(without(schema, *known), *known.values()) if known else schema


class _Counts:
    """The properties of a schema, and what `minProperties` and `maxProperties` say of them; None: in too many words."""

    def __init__(self, schema: Object):
        self._schema = schema
        self._required = {*schema.get("required", ())}
        self.optional = [name for name, each in schema.get("properties", {}).items()
                         if name not in self._required and each is not False]  # fmt: skip
        self._closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")

    def at_least(self, count: int) -> Schema | None:
        """Require as many of the optional keys as are needed, or fewer and others with them."""
        least = count - len(self._required)
        if least <= 0:
            return True
        sizes = range(0 if self._closed else min(least, len(self.optional) + 1))
        if self._are_many([*sizes, least]):
            return None
        chosen = combinations(self.optional, least) if least <= len(self.optional) else ()
        enough: list[Schema] = [{"required": [*names]} for names in chosen]
        fewer = [names for size in sizes for names in combinations(self.optional, size)]
        return self._any_of([*enough, *({**self._just(names), "minProperties": count} for names in fewer)])

    def at_most(self, count: int) -> Schema | None:
        """Some of the optional ones alone; and, of others, what is left."""
        most = count - len(self._required)
        if self._closed and most >= len(self.optional):
            return True
        sizes = range(most, most + 1) if self._closed and most >= 0 else range(min(len(self.optional), most) + 1)
        if self._are_many(sizes):
            return None
        chosen = [names for size in sizes for names in combinations(self.optional, size)]
        if self._closed:
            return self._any_of([*map(self._none_but, chosen)])
        return self._any_of([{**self._just(names), "maxProperties": count} for names in chosen])

    def _are_many(self, sizes: Iterable[int]) -> bool:
        counted = accumulate(comb(len(self.optional), size) for size in sizes)
        return any(count > _MOST_CHOICES for count in counted)

    def _any_of(self, choices: list[Schema]) -> Schema:
        """Any of these, or no object, where that may be: it has no properties to count."""
        others = [types_but({"object"})] if types_of(self._schema) != {"object"} else []
        return {"anyOf": [*choices, *others]} if choices or others else False

    def _none_but(self, names: tuple[str, ...]) -> Object:
        return {"properties": {name: False for name in self.optional if name not in names}}

    def _just(self, names: tuple[str, ...]) -> Object:
        return {**self._none_but(names), "required": [*names]}
