"""Escapes: which of them strings and keys may have, so that each text is written in one way."""

import re
from collections.abc import Iterator
from typing import Any

from jaxinfer.grammar.schema.facts import listed_values
from jaxinfer.grammar.schema.walk import Object, Schema, subschemas

LETTERS = 'nrbtf"\\'
"""Without `\\u`: a key in `properties`, written by numbers, would pass as one of others."""
ALL = LETTERS + "u"
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
_CONTROL_ESCAPE = re.compile(r"\\(?:x[01][0-9a-fA-F]|x7[fF]|u00[01][0-9a-fA-F]|u007[fF]|u\{|c[A-Za-z]|[0av])")


def escapes_of(schema: Schema) -> str | None:
    """Return the escapes that a schema's texts need: numbers where a constant or a pattern has a control character;
    None where they also would let keys pass in a second spelling."""
    inside = [*_all_within(schema)]
    if not any(map(_has_control, inside)):
        return LETTERS
    return None if any(map(_is_open, inside)) else ALL


def _all_within(schema: Schema) -> Iterator[Object]:
    if isinstance(schema, dict):
        yield schema
        for _, inner in subschemas(schema):
            yield from _all_within(inner)


def _has_control(schema: Object) -> bool:
    patterns = [schema.get("pattern", ""), *schema.get("patternProperties", ())]
    return any(map(_text_has_control, listed_values(schema) or ())) or any(
        _CONTROL.search(each) or _CONTROL_ESCAPE.search(each) for each in patterns
    )


def _text_has_control(value: Any) -> bool:
    if isinstance(value, str):
        return _CONTROL.search(value) is not None
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_text_has_control, inner))


def _is_open(schema: Object) -> bool:
    """Return True if some keys are named and others are allowed, too."""
    named = any(key in schema for key in ("properties", "patternProperties", "required"))
    return named and schema.get("additionalProperties") is not False
