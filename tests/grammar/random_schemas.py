"""Random JSON Schemas of every keyword that a rule rewrites, over the few values of `instances`."""

import random
from collections.abc import Callable
from typing import Any

from tests.grammar.instances import INSTANCES, SCALARS

_NAMES: list[Any] = [True, False, {"type": "string"}, {"enum": ["a", "b"]}, {"pattern": "^a"}, {"maxLength": 1},
                     {"const": "a"}, {"anyOf": [{"const": "x"}, {"pattern": "^a"}]}]  # fmt: skip


class RandomSchemas:
    """Draws schemas from a seed."""

    def __init__(self, seed: int):
        self._draw = random.Random(seed)
        self._references = list[str]()

    def schema(self) -> dict[str, Any]:
        """Draw a schema with two definitions."""
        q = self._schema(0)
        self._references.append("#/$defs/q")
        p = self._schema(1)
        self._references.append("#/$defs/p")
        root = self._schema(2)
        return {**(root if isinstance(root, dict) else {"not": {}}), "$defs": {"p": p, "q": q}}

    def _schema(self, depth: int) -> Any:
        draw = self._draw
        if draw.random() < 0.1:
            return draw.choice([True, False, {}, *({"$ref": each} for each in self._references)])
        kinds = ["string", "integer", "number", "object", "object", "array", "array", "boolean", "null"]
        kind, found = draw.choice(kinds), dict[str, Any]()
        if draw.random() < 0.8:
            found["type"] = kind if draw.random() < 0.85 else sorted({kind, "null"})
        for name, chance, make in self._keywords(kind, depth):
            if draw.random() < chance:
                found[name] = make()
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

    def _keywords(self, kind: str, depth: int) -> list[tuple[str, float, Callable[[], Any]]]:
        draw = self._draw
        own = {"string": self._of_strings, "object": self._of_objects, "array": self._of_arrays,
               "integer": self._of_numbers, "number": self._of_numbers}.get(kind)  # fmt: skip
        choices: list[tuple[str, float, Callable[[], Any]]] = [
            ("const", 0.1, lambda: draw.choice(INSTANCES)),
            ("enum", 0.12, lambda: draw.sample(INSTANCES, draw.randint(1, 4))),
        ]
        if depth:
            choices += [(key, 0.15, lambda: self._inners(depth)) for key in ("anyOf", "oneOf", "allOf")]
            choices += [(key, 0.08, lambda: self._inner(depth)) for key in ("not", "if", "then", "else")]
        return [*(own(depth) if own else []), *choices]

    def _of_strings(self, depth: int) -> list[tuple[str, float, Callable[[], Any]]]:
        patterns = ["^a", "b$", "^[ab]*$", "a|b", "^(a|x)$", "[^a]", "[[a]"]
        return [
            ("minLength", 0.3, lambda: self._draw.randint(0, 2)),
            ("maxLength", 0.3, lambda: self._draw.randint(0, 3)),
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
            ("minProperties", 0.2, lambda: draw.randint(0, 2)),
            ("maxProperties", 0.2, lambda: draw.randint(0, 3)),
            ("propertyNames", 0.15, lambda: draw.choice(_NAMES)),
            ("dependentRequired", 0.1, lambda: {"a": ["b"]}),
            ("dependentSchemas", 0.08, lambda: {"a": self._inner(depth)}),
            ("unevaluatedProperties", 0.05, lambda: False),
        ]

    def _of_arrays(self, depth: int) -> list[tuple[str, float, Callable[[], Any]]]:
        return [
            ("items", 0.6, lambda: self._inner(depth)),
            ("prefixItems", 0.3, lambda: self._inners(depth)),
            ("minItems", 0.3, lambda: self._draw.randint(0, 2)),
            ("maxItems", 0.3, lambda: self._draw.randint(0, 3)),
            ("additionalItems", 0.15, lambda: False),
            ("uniqueItems", 0.2, lambda: True),
        ]
