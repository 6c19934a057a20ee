"""Rewriting: rules, each exact, that say with keywords which llguidance holds what a client says with others.

What no rule can say exactly stays as it is, and llguidance refuses it by its keyword.
"""

import json
from collections.abc import Callable
from typing import NamedTuple

from jaxinfer.grammar.schema import arrays, choices, objects, scalars
from jaxinfer.grammar.schema.escapes import escapes_of
from jaxinfer.grammar.schema.recursion import without_endless
from jaxinfer.grammar.schema.references import Definitions, gathered
from jaxinfer.grammar.schema.scalars import InexactError
from jaxinfer.grammar.schema.shapes import malformed
from jaxinfer.grammar.schema.unfit import UnfitError
from jaxinfer.grammar.schema.walk import Object, Schema, with_subschemas, without

Rule = Callable[[Object, Definitions], Schema]
"""Returns a schema that fits the same values, in other words. Schemas inside it are rewritten after it."""

_MOST_SCHEMAS = 30_000
"""Schemas that one may become."""
_APPLICATORS = ("$ref", "allOf", "anyOf", "const", "enum", "oneOf")
_READ_TOGETHER = (("properties", "patternProperties", "additionalProperties"), ("prefixItems", "items"))


class Rewritten(NamedTuple):
    """A JSON Schema in the words that llguidance holds, and the escapes that its texts may have."""

    text: str
    escapes: str


def rewritten(text: str) -> Rewritten:
    """Return what llguidance is to read for a JSON Schema. Raises UnfitError."""
    try:
        return _rewritten(text)
    except (RecursionError, ArithmeticError) as error:
        raise UnfitError(f"it cannot be computed: {error}") from None


def _rewritten(text: str) -> Rewritten:
    root = gathered(json.loads(text))
    if wrong := malformed(root):
        raise UnfitError(wrong)
    root = _plain(root)
    try:
        definitions = Definitions(root)
        found = _Rewriting(definitions).of(root)
        found = without_endless(found) if definitions.are_known else found
    except InexactError as error:
        raise UnfitError(str(error)) from None
    if found is False:
        raise UnfitError("no text that ends fits it")
    escapes = escapes_of(found)
    if escapes is None:
        raise UnfitError("control characters in constants or patterns are not supported beside open objects with keys")
    return Rewritten(json.dumps(found, ensure_ascii=False), escapes)


def _plain(schema: Schema) -> Schema:
    """A schema in the form that rules expect of all that they look at."""
    for rule in PLAIN:
        if not isinstance(schema, dict):
            return schema
        schema = rule(schema)
    return with_subschemas(schema, _plain) if isinstance(schema, dict) else schema


class _Rewriting:
    """The rules, applied to one root and all inside it."""

    def __init__(self, definitions: Definitions):
        self._definitions = definitions
        self._left = _MOST_SCHEMAS

    def of(self, schema: Schema) -> Schema:
        self._left -= 1
        if self._left < 0:
            raise UnfitError(f"it stands for more than {_MOST_SCHEMAS:,} schemas")
        for rule in RULES:
            if not isinstance(schema, dict):
                return schema
            schema = rule(schema, self._definitions)
        return with_subschemas(schema, self.of) if isinstance(schema, dict) else schema


def own_words(schema: Object) -> Schema:
    """Without llguidance's options, which loosen what it holds, and without a draft: rules write the newest one's
    words, and read those of all."""
    return without(schema, "x-guidance", "$schema")


def together(schema: Object, definitions: Definitions) -> Schema:
    """Keywords that read one another side by side: llguidance takes those between applicators by themselves."""
    keywords = [*schema]
    for group in _READ_TOGETHER:
        at = [number for number, key in enumerate(keywords) if key in group]
        if len(at) > 1 and any(key in _APPLICATORS for key in keywords[at[0] : at[-1]]):
            rest = keywords[at[0] :]
            keywords[at[0] :] = [*(key for key in rest if key in group), *(key for key in rest if key not in group)]
    return {key: schema[key] for key in keywords}


PLAIN: tuple[Callable[[Object], Schema], ...] = (own_words, scalars.counts, scalars.listed)
RULES: tuple[Rule, ...] = (
    scalars.formats,
    scalars.patterns,
    scalars.constants,
    scalars.bounds,
    arrays.tuples,
    arrays.unevaluated_items,
    arrays.unique_items,
    objects.unevaluated_properties,
    objects.property_names,
    objects.dependencies,
    objects.property_counts,
    choices.conditions,
    choices.negations,
    choices.one_of,
    together,
)
