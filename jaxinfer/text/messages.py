"""Messages of a conversation as templates take them: a role and a text."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxinfer.errors import ParameterError


def content_text(content: Any, where: str) -> str:
    """The text of a message's content: a string, or a list of text parts, which line breaks join.

    where: what errors call it, `messages[0].content`. Raises ParameterError.
    """
    if isinstance(content, str):
        return content
    if content is None:
        raise ParameterError(where, "is missing")
    if not isinstance(content, Sequence):
        raise ParameterError(where, f"must be a string or a list of text parts, not {type(content).__name__}")
    return "\n".join(_part_text(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind != "text":
        raise ParameterError(f"{where}.type", f"{kind!r} is not supported; only text parts are")
    if set(part) != {"type", "text"} or not isinstance(part["text"], str):
        raise ParameterError(where, "must be {'type': 'text', 'text': a string} and nothing else")
    return part["text"]
