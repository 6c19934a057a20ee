"""Markers around parts of a request's strings, by which they are found again in what a chat template makes of them."""

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxinfer.text.messages import ROLES

Span = tuple[int, int]

_DIGITS = 24
_NAMED_LEVELS = 2
_WORDS = frozenset({*ROLES, "function"})
"""Strings that the API itself gives a meaning, which templates compare and build control tokens of."""


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


class Suspects:
    """What of a string could be a control token, or a part of one that a template completes."""

    def __init__(self, tokens: frozenset[str]):
        self._tokens = tokens
        self._whole = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)")
        self._heads = _by_last({token[:n] for token in tokens for n in range(1, len(token))})
        self._tails = _by_first({token[n:] for token in tokens for n in range(1, len(token))})

    def whole(self, text: str) -> str | None:
        """The first control token in a text."""
        found = self._whole.search(text)
        return None if found is None else found.group()

    def spans(self, text: str, *, is_key: bool = False) -> list[Span]:
        """Whole control tokens; the beginning of one at the text's end, the end of one at its beginning, and texts
        that stand in the middle of one. Templates trim texts, and those that are keys are not built on.
        """
        spans = [match.span() for match in self._whole.finditer(text)]
        start, end = len(text) - len(text.lstrip()), len(text.rstrip())
        if start >= end:
            return spans
        if not is_key and text not in _WORDS and any(text[start:end] in token for token in self._tokens):
            return [(start, end)]
        head = next((head for head in self._heads.get(text[end - 1], ()) if text.endswith(head, start, end)), "")
        tail = next((tail for tail in self._tails.get(text[start], ()) if text.startswith(tail, start, end)), "")
        spans += [span for span in ((end - len(head), end), (start, start + len(tail))) if span[0] < span[1]]
        return _merged(spans)


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


def _by_last(texts: set[str]) -> dict[str, list[str]]:
    return {char: _longest_first(text for text in texts if text[-1] == char) for char in {text[-1] for text in texts}}


def _by_first(texts: set[str]) -> dict[str, list[str]]:
    return {char: _longest_first(text for text in texts if text[0] == char) for char in {text[0] for text in texts}}


def _longest_first(texts: Iterator[str]) -> list[str]:
    return sorted(texts, key=len, reverse=True)


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
