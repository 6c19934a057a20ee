"""AnswerPart: a piece of a chat's answer, and what the parsers of its forms share."""

import json
from typing import Any, NamedTuple, Protocol


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
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else None
