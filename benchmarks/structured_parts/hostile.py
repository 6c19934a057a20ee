"""Requests that try to overload a server: schemas, regular expressions and grammars, and their size."""

import json
from collections.abc import Callable
from itertools import cycle
from typing import Any

Bodies = Callable[[int], bytes]
"""The body of request number n."""


def _asking(constraint: dict[str, Any]) -> bytes:
    return json.dumps({"prompt": "a", "max_tokens": 8, "structured_outputs": constraint}).encode()


def _chain(number: int) -> bytes:
    """1,200 definitions, each in the one before it; none is like another's."""
    of = {f"d{i}": {"type": "object", "properties": {f"a{number}": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(1200)}
    return _asking({"json": {"$ref": "#/$defs/d0", "$defs": of | {"d1200": {"type": "null"}}}})


def _recursion(number: int) -> bytes:
    """A tree of trees of many kinds, which may be nested without end."""
    kinds = [{"$ref": f"#/$defs/t{i}"} for i in range(40)]
    tree = {"type": "object", "properties": {f"l{number}": {"anyOf": kinds}, "r": {"type": "array", "items": kinds[0]}}}
    return _asking({"json": {"$ref": "#/$defs/t0", "$defs": {f"t{i}": tree for i in range(40)}}})


def _nested(number: int) -> bytes:
    """Deeper than any schema may be."""
    return b'{"prompt": "a", "structured_outputs": {"json": %s%s}}' % (b'{"not": ' * 5000, b"{}" + b"}" * 5000)


def _multiple(number: int) -> bytes:
    return _asking({"json": {"type": "integer", "multipleOf": 9_999_991 - 2 * number}})


REGEXES = cycle([
    "(a|aa)+b{1000}",
    "((a{1000}){1000}){1000}",
    "(a|a)*(a|aa){500}(a|aaa){500}c",
    "(.*a){200}",
    "([a-z]{1,100}[0-9]{1,100}){1,100}(x+x+)+y",
    "(?:(?:(?:a?){100}){100}){100}b",
])  # fmt: skip


def _regex(number: int) -> bytes:
    return _asking({"regex": f"{next(REGEXES)}z{{{1 + number % 50}}}"})


def _large(number: int) -> bytes:
    """7.9 MB of a schema, which the server reads, and 10 MB, which it does not."""
    size = 7_900_000 if number % 2 else 10_000_000
    fields = (f'"field_{i:06}_{number:06}": {{"type": "string"}}' for i in range(size // 42))
    return b'{"prompt": "a", "structured_outputs": {"json": {"properties": {%s}}}}' % ",".join(fields).encode()


def _small(number: int) -> bytes:
    """A schema of its own, which is compiled and kept."""
    fields = {f"field_{number}_{i}": {"type": "string", "maxLength": 3 + number % 50} for i in range(4)}
    return _asking({"json": {"type": "object", "properties": fields, "required": [*fields]}})


ATTACKS: dict[str, tuple[Bodies, float]] = {
    "chains of 1,200 definitions": (_chain, 2.0),
    "recursion": (_recursion, 5.0),
    "5,000 levels": (_nested, 20.0),
    "multiples of 9,999,991": (_multiple, 1.0),
    "exponential regexes": (_regex, 5.0),
    "10 MB": (_large, 1.0),
    "10,000 schemas": (_small, 20.0),
}
"""Bodies, and requests a second."""
