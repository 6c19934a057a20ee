"""JSON that a model writes: which places of a text that arrives bit by bit are inside of a string, and whether it is an
object, or may become one."""

import json
import re
from typing import Any

_OUTSIDE = re.compile(r'[^"]*+(?:"(?:[^"\\\x00-\x1f]|\\[^\x00-\x1f])*+"[^"]*+)*+')
"""Up to a string that does not end."""
_INSIDE = re.compile(r"(?:[^\"\\\x00-\x1f]|\\[^\x00-\x1f])*+")


class JsonStrings:
    """Reads a text once, however often it is asked. start: where the JSON begins in the text."""

    def __init__(self, start: int):
        self._at = start
        self._inside = False

    def is_inside(self, text: str, end: int) -> bool | None:
        """Whether `end` is inside of a string; None where what stands before it is no JSON, for which later places need
        not be asked for. text: the one of before, or more of it. end: not below that of before."""
        while self._at < end:
            pattern = _INSIDE if self._inside else _OUTSIDE
            match = pattern.match(text, self._at, end)
            assert match is not None
            self._at = match.end()
            if self._at == end or (self._inside and self._at == end - 1 and text[self._at] == "\\"):
                break
            if text[self._at] != '"':
                return None
            self._at, self._inside = self._at + 1, not self._inside
        return self._inside


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


DECODER = json.JSONDecoder(parse_int=float, parse_constant=_refuse)
"""Decodes JSON as RFC 8259 has it: NaN and Infinity are none, and an integer may have thousands of digits."""


def json_object(text: str) -> dict[str, Any] | None:
    """Return the object that a text is; None where it is none."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
