"""CustomInput: the text that a custom tool is called with, out of the arguments of a function as they are written."""

import json
import re

from jaxinfer.serving.requests.response_tools import CUSTOM_ARGUMENT

_BEGIN = re.compile(rf'\s*\{{\s*"{CUSTOM_ARGUMENT}"\s*:\s*"')
_PIECES = re.compile(
    r'(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u(?!d[89a-f])[0-9a-f]{4}|ud[89ab][0-9a-f]{2}\\u[0-9a-f]{4}))*', re.IGNORECASE
)
"""What of a JSON string can be read whatever follows: no half of an escape, nor of a pair of them."""

_MOST_BEFORE = 64
"""Characters in which the text must have begun."""


class CustomInput:
    """Reads `{"input": "…"}` piece by piece. Arguments of another form are the text themselves."""

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
        if self._state != "inside":
            return ""
        found = _PIECES.match(self._held)
        assert found is not None
        self._held = self._held[found.end() :]
        if self._held.startswith('"'):
            self._state = "after"
        return json.loads(f'"{found[0]}"')
