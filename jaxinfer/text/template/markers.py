"""Markers around parts of a request's strings, by which they are found again in what a chat template makes of them."""

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Span = tuple[int, int]

_DIGITS = 24
_NAMED_LEVELS = 2


class Markers:
    """Digits that nobody can guess: templates change the case of letters, escape signs and trim spaces."""

    def __init__(self) -> None:
        self._open, self._close = _number(), _number()
        self._either = re.compile(f"{self._open}|{self._close}")

    def around(self, text: str, spans: Sequence[Span]) -> str:
        """The text with markers around each span; spans are in order and apart."""
        pieces, at = [], 0
        for start, end in spans:
            pieces += [text[at:start], self._open, text[start:end], self._close]
            at = end
        return "".join([*pieces, text[at:]])

    def taken_out(self, text: str) -> tuple[str, list[Span]] | None:
        """A text without its markers, and the spans that they were around; None where some are lost."""
        pieces, spans, at, length, start = [], [], 0, 0, -1
        for match in self._either.finditer(text):
            pieces.append(text[at : match.start()])
            length += match.start() - at
            at = match.end()
            if (match.group() == self._open) != (start < 0):
                return None
            if start < 0:
                start = length
            else:
                spans.append((start, length))
                start = -1
        return ("".join([*pieces, text[at:]]), spans) if start < 0 else None


def strings_of(value: Any, where: str) -> Iterator[tuple[str, str, bool]]:
    """Every string in plain values: where it is, itself, and whether it is a key. Without recursion, in no order.

    Where it is goes two levels down: a long key would be in the name of everything below it.
    """
    left: list[tuple[str, int, Any]] = [(where, _NAMED_LEVELS, value)]
    while left:
        where, named, value = left.pop()
        if isinstance(value, str):
            yield where, value, False
        elif isinstance(value, Mapping):
            yield from ((where, key, True) for key in value if isinstance(key, str))
            left += [(f"{where}.{key}" if named else where, max(0, named - 1), item) for key, item in value.items()]
        elif isinstance(value, Sequence):
            left += [(f"{where}[{i}]" if named else where, max(0, named - 1), item) for i, item in enumerate(value)]


def with_strings(value: Any, change: Callable[[str, bool], str]) -> Any:
    """Plain values with every string changed. change: takes a string, and whether it is a key."""
    if isinstance(value, str):
        return change(value, False)
    if isinstance(value, Mapping):
        return {
            change(key, True) if isinstance(key, str) else key: with_strings(item, change)
            for key, item in value.items()
        }
    if isinstance(value, Sequence):
        return [with_strings(item, change) for item in value]
    return value


def _number() -> str:
    # No beginning of it is an end of it, so that what stands beside it makes no other match.
    return "7" + "".join(secrets.choice("012345689") for _ in range(_DIGITS))
