"""Random JSON Schemas of every keyword that a rule rewrites, over the few values of `instances`."""

import random
from collections.abc import Callable
from typing import Any

from jaxinfer.grammar.schema.references import pointer_to
from jaxinfer.grammar.schema.walk import Path, subschemas
from tests.grammar.instances import IN_PYTHON, INSTANCES, SCALARS

_NAMES: list[Any] = [True, False, {"type": "string"}, {"type": "null"}, {"enum": ["a", "b"]}, {"pattern": "^a"},
                     {"pattern": "^a$"}, {"maxLength": 1}, {"minLength": 1.0}, {"minLength": 2.0, "maxLength": 2},
                     {"const": "a"}, {"const": "a", "enum": ["b", "x"]}, {"const": "b", "enum": ["b", "x"]},
                     {"enum": [1, None]}, {"anyOf": [{"type": "null"}, {"pattern": "^a$"}]}]  # fmt: skip
_OLDER = "https://json-schema.org/draft/2019-09/schema"


class RandomSchemas:
    """Draws schemas from a seed: a third of 2019-09, whose tuples are lists in `items`."""

    def __init__(self, seed: int):
        self._draw = random.Random(seed)
        self._references = list[str]()
        self._older = seed % 3 == 0
        self._of_kind = {"string": self._of_strings, "object": self._of_objects, "array": self._of_arrays,
                         "integer": self._of_numbers, "number": self._of_numbers}  # fmt: skip

    def schema(self) -> dict[str, Any]:
        """Draw a schema with two definitions, named as properties are."""
        b = self._schema(0)
        self._references += self._pointers(b, ("$defs", "b"))
        a = self._schema(1)
        self._references += self._pointers(a, ("$defs", "a"))
        root = self._schema(2) if self._draw.random() < 0.6 else self._small(self._draw.choice([*self._of_kind]))
        draft = {"$schema": _OLDER} if self._older else {}
        return {**draft, **(root if isinstance(root, dict) else {"not": {}}), "$defs": {"a": a, "b": b}}

    def _small(self, kind: str) -> dict[str, Any]:
        """Draw a few keywords that read one another, or a choice of two such schemas."""
        if self._draw.random() < 0.3:
            return {"oneOf": [self._small(kind), self._small(kind)]}
        keywords = self._draw.sample(self._of_kind[kind](1), self._draw.randint(1, 3))
        return {"type": kind, **{name: make() for name, _, make in keywords}}

    def _of_its_own(self) -> dict[str, Any]:
        """Draw definitions below an `$id`, and often a reference, which leads to one of them and none of the root's."""
        refers = {"not": {"$ref": "#/$defs/a"}} if self._draw.random() < 0.5 else {}
        return {"$id": f"urn:{self._draw.random()}", "$defs": {"a": self._inner(0), "b": self._inner(0)}, **refers}

    def _pointers(self, definition: Any, at: Path) -> list[str]:
        """Pointers to a definition, thrice, and to what is directly inside it."""
        inside = [pointer_to(at + path) for path, _ in subschemas(definition) if path[0] != "$defs"]
        return [pointer_to(at)] * 3 + inside

    def _schema(self, depth: int) -> Any:
        draw = self._draw
        if draw.random() < 0.1:
            return draw.choice([True, False, {}, *({"$ref": each} for each in self._references)])
        kinds = ["string", "integer", "number", "object", "object", "array", "array", "boolean", "null"]
        kind, found = draw.choice(kinds), dict[str, Any]()
        if draw.random() < 0.8:
            found["type"] = kind if draw.random() < 0.85 else sorted({kind, "null"})
        for name, chance, make in self._keywords(kind, depth, found):
            if draw.random() < chance:
                found[name] = make()
        if depth < 2 and draw.random() < 0.04:
            found |= self._of_its_own()
        keys = [*found]
        draw.shuffle(keys)
        return {key: found[key] for key in keys}

    def _inner(self, depth: int) -> Any:
        if depth:
            return self._schema(depth - 1)
        kinds = [{"type": kind} for kind in ("string", "integer", "null")]
        return self._draw.choice([True, *kinds, {"const": self._draw.choice(SCALARS)}])

    def _inners(self, depth: int) -> list[Any]:
        return [self._inner(depth) for _ in range(self._draw.randint(1, 3))]

    def _enum(self, schema: dict[str, Any]) -> list[Any]:
        """Often with the `const` that is beside it."""
        others = self._draw.sample(INSTANCES, self._draw.randint(1, 4))
        return [*others, schema["const"]] if "const" in schema and self._draw.random() < 0.7 else others

    def _names(self, depth: int) -> Any:
        if not depth or self._draw.random() < 0.6:
            return self._draw.choice(_NAMES)
        choices = [self._names(depth - 1) for _ in range(self._draw.randint(1, 3))]
        return {self._draw.choice(["anyOf", "anyOf", "allOf"]): choices}

    def _count(self, most: int) -> float:
        count = self._draw.randint(0, most)
        return float(count) if self._draw.random() < 0.1 else count

    def _keywords(self, kind: str, depth: int, found: dict[str, Any]) -> list[tuple[str, float, Callable[[], Any]]]:
        draw = self._draw
        own = self._of_kind.get(kind)
        choices: list[tuple[str, float, Callable[[], Any]]] = [
            ("const", 0.1, lambda: draw.choice(INSTANCES)),
            ("enum", 0.12, lambda: self._enum(found)),
        ]
        if depth:
            choices += [(key, 0.15, lambda: self._inners(depth)) for key in ("anyOf", "oneOf", "allOf")]
            choices += [(key, 0.08, lambda: self._inner(depth)) for key in ("not", "if", "then", "else")]
        return [*(own(depth) if own else []), *choices]

    def _of_strings(self, depth: int) -> list[tuple[str, float, Callable[[], Any]]]:
        patterns = ["^a", "b$", "^[ab]*$", "a|b", "^(a|x)$", "[^a]", "[[a]", *IN_PYTHON]
        return [
            ("minLength", 0.3, lambda: self._count(2)),
            ("maxLength", 0.3, lambda: self._count(3)),
            ("exclusiveMinLength", 0.1, lambda: 5),
            ("pattern", 0.3, lambda: self._draw.choice(patterns)),
            ("format", 0.1, lambda: self._draw.choice(["path", "uuid4"])),
        ]

    def _of_numbers(self, depth: int) -> list[tuple[str, float, Callable[[], Any]]]:
        return [
            ("minimum", 0.3, lambda: self._draw.choice([0, 1, -1, 1.5])),
            ("maximum", 0.3, lambda: self._draw.choice([2, 1, 3, 1.5])),
            ("exclusiveMinimum", 0.2, lambda: self._draw.choice([0, 1])),
            ("exclusiveMaximum", 0.2, lambda: self._draw.choice([2, 3])),
            ("multipleOf", 0.1, lambda: self._draw.choice([2, 3, 0.5])),
        ]

    def _of_objects(self, depth: int) -> list[tuple[str, float, Callable[[], Any]]]:
        draw = self._draw
        return [
            ("properties", 0.7, lambda: {key: self._inner(depth) for key in draw.sample("abx", draw.randint(1, 3))}),
            ("required", 0.4, lambda: draw.sample("abx", draw.randint(0, 2))),
            ("additionalProperties", 0.5, lambda: draw.choice([False, False, True, self._inner(depth)])),
            ("patternProperties", 0.15, lambda: {draw.choice(["^a", "b$", "^x"]): self._inner(depth)}),
            ("minProperties", 0.2, lambda: self._count(2)),
            ("maxProperties", 0.2, lambda: self._count(3)),
            ("propertyNames", 0.2, lambda: self._names(2)),
            ("dependentRequired", 0.1, lambda: {"a": ["b"]}),
            ("dependentSchemas", 0.08, lambda: {"a": self._inner(depth)}),
            ("unevaluatedProperties", 0.05, lambda: False),
        ]

    def _of_arrays(self, depth: int) -> list[tuple[str, float, Callable[[], Any]]]:
        listed = self._older and self._draw.random() < 0.6
        others: list[tuple[str, float, Callable[[], Any]]] = [
            ("additionalItems", 0.15, lambda: self._draw.choice([False, self._inner(depth)])),
            ("unevaluatedItems", 0.15, lambda: self._draw.choice([False, False, True, self._inner(depth)])),
        ]
        return [
            ("items", 0.6, lambda: (self._inners if listed else self._inner)(depth)),
            *([] if self._older else [("prefixItems", 0.3, lambda: self._inners(depth))]),
            ("minItems", 0.3, lambda: self._count(2)),
            ("maxItems", 0.3, lambda: self._count(3)),
            ("exclusiveMaxItems", 0.1, lambda: 0),
            # jsonschema fails on these beside `items` of 2019-09 that are true.
            *(others if listed or not self._older else []),
            ("uniqueItems", 0.2, lambda: True),
        ]
