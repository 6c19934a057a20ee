"""AnswerPart: a piece of a chat's answer, and what the parsers of its forms share."""

import json
import re
from typing import Any, NamedTuple, Protocol

from jaxinfer.text.json_strings import DECODER, json_object


class ToolCallPart(NamedTuple):
    """A whole call. arguments: a JSON object as text."""

    name: str
    arguments: str


class AnswerPart(NamedTuple):
    """What a piece of text adds to an answer; at most one of the three is there."""

    content: str = ""
    reasoning: str = ""
    tool_call: ToolCallPart | None = None


class Parser(Protocol):
    """Takes a model's text apart as it arrives; the result does not depend on how it is cut into pieces."""

    def push(self, text: str) -> list[AnswerPart]:
        """The parts that are complete with this text."""
        ...

    def flush(self) -> list[AnswerPart]:
        """What was held back: the text has ended."""
        ...


def beginning_of(tag: str, text: str) -> int:
    """Length of the longest end of `text` that begins `tag`."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)


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
