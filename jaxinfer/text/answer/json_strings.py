"""JSON that a model writes bit by bit: which places are inside of a string, where an object ends, and whether a text is
an object or may become one."""

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
        """Return whether `end` is inside a string; None if the text before it is no JSON, and then later places need
        not be asked for. text: the previous call's, or more of it. end: not below the previous call's."""
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


def may_become_object(text: str) -> bool:
    """Return whether a text is the beginning of a JSON object that has not ended yet."""
    opened = ObjectText()
    if not text.startswith("{") or opened.read(text) < len(text) or opened.ended:
        return False
    return any(json_object(text + ending + opened.closing) is not None for ending in _ENDINGS)


_IN_STRINGS = ("", "\\", "n", "0", "00", "000", "0000")
_ENDINGS = (
    *("", "0", ":0", '"a":0', "rue", "ue", "e", "alse", "lse", "se", "ull", "ll", "l"),
    *(f'{rest}"{value}' for rest in _IN_STRINGS for value in ("", ":0")),
)
"""Endings that a value, a key or an escape may lack before brackets are closed."""


class ObjectText:
    """Finds the end of an object in a text that arrives bit by bit. ended: it was found."""

    def __init__(self) -> None:
        self.ended = False
        self._brackets: list[str] = []
        self._inside = self._escaped = False

    @property
    def closing(self) -> str:
        """The brackets that are missing."""
        return "".join(reversed(self._brackets))

    def read(self, text: str) -> int:
        """Return how many characters of more text are the object's: up to its end, or to a `<` outside of strings."""
        at = 0
        while at < len(text) and not self.ended:
            if self._escaped:
                self._escaped, at = False, at + 1
                continue
            found = (_MARK_INSIDE if self._inside else _MARK_OUTSIDE).search(text, at)
            if found is None:
                return len(text)
            if found.group() == "<":
                return found.start()
            self._take(found.group())
            at = found.end()
        return at

    def _take(self, mark: str) -> None:
        if mark == '"':
            self._inside = not self._inside
        elif mark == "\\":
            self._escaped = True
        elif mark in _CLOSED_BY:
            self._brackets.append(_CLOSED_BY[mark])
        else:
            self._brackets[-1:] = []
            self.ended = not self._brackets


_CLOSED_BY = {"{": "}", "[": "]"}
_MARK_INSIDE = re.compile(r'["\\]')
_MARK_OUTSIDE = re.compile(r'["{}\[\]<]')
