"""Instances, a few hundred small JSON values, and which of them a grammar accepts and JSON Schema calls valid."""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jsonschema
from jsonschema import validators
from llguidance import LLMatcher
from referencing.jsonschema import specification_with

from jaxinfer.constraint import Constraint
from jaxinfer.grammar.reading import read_tokenizers
from jaxinfer.grammar.source import grammar_text
from tests.grammar.walks import END, FILE, SIZE

TOKENIZER = read_tokenizers(str(FILE), SIZE, (END,)).guided
SCALARS: list[Any] = [None, True, False, -1, 0, 1, 2, 3, 1.5, "", "a", "b", "ab", "ba", "x", "aab", "a\rb", "]"]
_LISTS = [[], *([each] for each in SCALARS), [1, 1], [1, 2], ["a", "b"], ["a", "a"], [1, "a"], ["a", 1], [None, True],
          [True, False], [1, 2, 3], ["a", "b", "a"]]  # fmt: skip
_OBJECTS = [{}, *({key: each} for key in "abx" for each in (1, "a", None, 2, [1], {})),
            *({"a": one, "b": other} for one in (1, "a", None) for other in (1, "b", True)),
            {"a": 1, "b": "a", "x": 2}, {"a": "a", "x": 1}, {"b": 1, "x": 1}, {"ab": 1}, {"a": 1, "ab": 2}, {"": 1},
            {"a": 1, "b": 1, "x": 1, "ab": 1}]  # fmt: skip
INSTANCES: list[Any] = [*SCALARS, *_LISTS, *_OBJECTS]


IN_PYTHON = {"^a.b$": r"^a[^\n\r]b\Z", "^[]a]": "(?!)", "^(?:[]|b)$": r"^b\Z", "^[^]$": r"^[\s\S]\Z", "a.": r"a[^\n\r]"}
"""Patterns that Python reads otherwise than JavaScript, and what Python has to read."""


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    if isinstance(instance, str) and not re.search(IN_PYTHON.get(pattern, pattern), instance):
        yield jsonschema.ValidationError("no match")


def _validator_of(schema: Any) -> Any:
    """By the schema's draft, with JavaScript's patterns. References below an `$id` stay below it also inside of `not`,
    `if`, `oneOf` and `contains`, which jsonschema (4.26) reads by `evolve`, as if the `$id` were not there."""
    draft = validators.extend(validators.validator_for(schema, jsonschema.Draft202012Validator), {"pattern": _pattern})
    resource_of, evolve = specification_with(draft.META_SCHEMA["$schema"]).create_resource, draft.evolve

    def evolve_below(self: Any, **changes: Any) -> Any:
        if "_resolver" not in changes:
            changes["_resolver"] = self._resolver.in_subresource(resource_of(changes["schema"]))
        return evolve(self, **changes)

    draft.evolve = evolve_below
    return draft(schema)


class Differences(NamedTuple):
    """Instances that a grammar takes or leaves otherwise than JSON Schema."""

    accepted: list[Any]
    rejected: list[Any]


class RefusedError(Exception):
    """A schema of which no grammar was made; the message says why."""


def matcher_of(schema: Any) -> LLMatcher:
    """Return a matcher of a schema's grammar. Raises RefusedError or ParameterError."""
    found = LLMatcher(TOKENIZER, grammar_text(Constraint.schema(schema, "x"), {}), log_level=0)
    if found.is_error():
        raise RefusedError(found.get_error())
    return found


def accepts(matcher: LLMatcher, text: str) -> bool:
    """Return whether a text is whole by a grammar."""
    ids, own = TOKENIZER.tokenize_str(text), matcher.deep_copy()
    return own.try_consume_tokens(ids) == len(ids) and own.is_accepting()


def orders(value: Any) -> Iterator[Any]:
    """Yield a value with its keys in each order."""
    if isinstance(value, dict):
        yield from map(dict, itertools.permutations(value.items()))
    else:
        yield value


def differences(schema: Any, instances: list[Any] = INSTANCES) -> Differences:
    """Return those of the instances that JSON Schema calls invalid and are accepted with any order of keys, and those
    that it calls valid and are accepted with none."""
    matcher, validator = matcher_of(schema), _validator_of(schema)
    accepted, rejected = [], []
    for each in instances:
        taken = any(accepts(matcher, json.dumps(one, separators=(",", ":"))) for one in orders(each))
        if taken != validator.is_valid(each):
            (accepted if taken else rejected).append(each)
    return Differences(accepted, rejected)
