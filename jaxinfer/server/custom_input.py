"""CustomInput: the text that a custom tool is called with, out of the arguments of a function as they are written."""

import re

from jaxinfer.serving.requests.response_tools import CUSTOM_ARGUMENT

_BEGIN = re.compile(rf'\s*\{{\s*"{CUSTOM_ARGUMENT}"\s*:\s*"')
_MARK = re.compile(r'["\\]')
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX, _SECOND_HALF = re.compile(r"[0-9a-fA-F]{4}"), re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_UNREADABLE = "\ufffd"

_MOST_BEFORE = 64
"""Characters in which the text must have begun."""


class CustomInput:
    """Reads `{"input": "…"}` piece by piece. Arguments of another form are the text themselves.

    What strict JSON forbids inside of a string is read as it is meant: a line break, a backslash before another
    letter; half of a pair of surrogates is U+FFFD.
    """

    def __init__(self) -> None:
        self._held = ""
        self._state = "before"

    def push(self, arguments: str) -> str:
        """The text that is certain with more of the arguments."""
        self._held += arguments
        if self._state == "before":
            self._begin()
        return self._read()

    def flush(self) -> str:
        """The text that was held back: the arguments have ended."""
        if self._state == "before":
            self._state = "plain"
        return self._read()

    def _begin(self) -> None:
        found = _BEGIN.match(self._held)
        if found is not None:
            self._held, self._state = self._held[found.end() :], "inside"
        elif len(self._held) > _MOST_BEFORE:
            self._state = "plain"

    def _read(self) -> str:
        if self._state == "plain":
            text, self._held = self._held, ""
            return text
        read, at = list[str](), 0
        while self._state == "inside" and at < len(self._held):
            found = _MARK.search(self._held, at)
            end = len(self._held) if found is None else found.start()
            read.append(self._held[at:end])
            at = end
            if found is not None and found[0] == '"':
                self._state = "after"
            elif found is not None:
                escape = _escaped(self._held, at)
                if escape is None:
                    break
                text, length = escape
                read.append(text)
                at += length
        self._held = self._held[at:]
        return "".join(read)


def _escaped(text: str, at: int) -> tuple[str, int] | None:
    """The character that an escape means, and its length; None if the text ends within it."""
    kind, code = text[at + 1 : at + 2], text[at + 2 : at + 6]
    if kind != "u":
        return (_ESCAPES.get(kind, f"\\{kind}"), 2) if kind else None
    if _HEX.fullmatch(code) is None:
        return None if _may_become(_HEX, code, "0000") else ("\\u", 2)
    number, rest = int(code, 16), text[at + 6 : at + 12]
    if not 0xD800 <= number < 0xE000:
        return chr(number), 6
    if number < 0xDC00 and _SECOND_HALF.fullmatch(rest):
        return chr(0x10000 + ((number - 0xD800) << 10) + int(rest[2:], 16) - 0xDC00), 12
    waits = number < 0xDC00 and _may_become(_SECOND_HALF, rest, "\\udc00")
    return None if waits else (_UNREADABLE, 6)


def _may_become(pattern: re.Pattern[str], text: str, whole: str) -> bool:
    """Return whether a text is the beginning of what a pattern matches. whole: one of its matches."""
    return len(text) < len(whole) and pattern.fullmatch(text + whole[len(text) :]) is not None
