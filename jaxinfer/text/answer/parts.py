"""AnswerPart: a piece of a chat's answer, and what the parsers of its forms share."""

import json
import re
from typing import Any, NamedTuple, Protocol, TypeGuard

from jaxinfer.text.answer.json_strings import DECODER, json_object

TOLD_AFTER = 64
"""Characters of a call's arguments that must be the beginning of a JSON object before the call is told: so that what is
no call from the start stays in the content. From there on arguments are told as they are written, whatever they are."""


class ToolCallPart(NamedTuple):
    """A call. arguments: a JSON object as text; empty where they follow in parts of their own."""

    name: str
    arguments: str


class AnswerPart(NamedTuple):
    """An addition to an answer by a piece of text; at most one of the four is there. arguments: more of the last
    call's."""

    content: str = ""
    reasoning: str = ""
    tool_call: ToolCallPart | None = None
    arguments: str = ""


class Parser(Protocol):
    """Takes a model's text apart as it arrives; the result does not depend on how it is cut into pieces."""

    def push(self, text: str) -> list[AnswerPart]:
        """The parts that are complete with this text."""
        ...

    def flush(self) -> list[AnswerPart]:
        """Return what was held back: the text has ended."""
        ...


class WholeCalls:
    """A parser whose calls come whole, once something else follows or the text has ended."""

    def __init__(self, parser: Parser):
        self._parser = parser
        self._call: ToolCallPart | None = None

    def push(self, text: str) -> list[AnswerPart]:
        """The parts that are complete with this text."""
        return self._whole(self._parser.push(text))

    def flush(self) -> list[AnswerPart]:
        """Return what was held back: the text has ended."""
        return [*self._whole(self._parser.flush()), *self._ended()]

    def _whole(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        found: list[AnswerPart] = []
        for part in parts:
            if part.arguments and self._call is not None:
                self._call = self._call._replace(arguments=self._call.arguments + part.arguments)
                continue
            found += self._ended()
            if part.tool_call is None:
                found.append(part)
            self._call = part.tool_call
        return found

    def _ended(self) -> list[AnswerPart]:
        call, self._call = self._call, None
        return [] if call is None else [AnswerPart(tool_call=call)]


def beginning_of(tag: str, text: str) -> int:
    """Length of the longest end of `text` that begins `tag`."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)


def is_text(value: Any) -> TypeGuard[str]:
    """Return whether a value is a string that can be sent: JSON may write half of a pair of surrogates."""
    return isinstance(value, str) and _SURROGATE.search(value) is None


_SURROGATE = re.compile("[\ud800-\udfff]")


def arguments_text(value: Any) -> str | None:
    """The arguments of a call, an object or its JSON, as JSON; None where they are no object."""
    if isinstance(value, str):  # as it is written: a number may be more exact than one of Python's
        return None if json_object(value) is None else value.strip()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else None


def member_text(text: str, name: str) -> str:
    """The last member of this name as it is written. text: a JSON object that has it, and was decoded."""
    found, at = "", _past(_OPENING, text, 0)
    while text[at] == '"':
        key, at = DECODER.raw_decode(text, at)
        at = _past(_COLON, text, at)
        _, end = DECODER.raw_decode(text, at)
        if key == name:
            found = text[at:end]
        at = _past(_COMMA, text, end)
    return found


def _past(mark: re.Pattern[str], text: str, at: int) -> int:
    match = mark.match(text, at)
    assert match is not None
    return match.end()


_OPENING, _COLON, _COMMA = (re.compile(rf"[ \t\n\r]*{mark}[ \t\n\r]*") for mark in ("{", ":", ",?"))
