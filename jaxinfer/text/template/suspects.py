"""Suspects: what of a request's strings could be a control token, or a part of one."""

import functools
import re
from collections.abc import Iterator

from jaxinfer.text.template.markers import Span
from jaxinfer.text.template.messages import ROLES

_WORDS = frozenset({*ROLES, "function"})
"""Strings that the API itself gives a meaning, which templates compare and build control tokens of."""


class Suspects:
    """Search for control tokens in a request's strings: one of `tokens`, or a part of one that a template completes.

    normalizing: the tokenizer looks for them in normalized text, in which full-width signs, say, become simple ones.
    """

    def __init__(self, tokens: frozenset[str], *, normalizing: bool = False):
        self._tokens = tokens
        self._folded = [token.casefold() for token in tokens]
        self._longest = max(map(len, tokens), default=0)
        self._normalizing = normalizing
        whole = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)"
        self._whole, self._anywhere = re.compile(whole), re.compile(f"(?=({whole}))")
        self._signs = re.compile(_one_of(set().union(*map(_signs_of, tokens)), r"[^\w\s]" if normalizing else ""))
        self._heads = _by_last({token[:n] for token in tokens for n in range(1, len(token))})
        self._tails = _by_first({token[n:] for token in tokens for n in range(1, len(token))})

    def touches(self, text: str, is_key: bool) -> bool:
        """True where a text has a sign of a control token, or is the middle of one."""
        return self._signs.search(text) is not None or bool(self._inside(text, is_key))

    def signs(self, text: str) -> set[str]:
        """The signs of control tokens in a text: their first and last characters, and those that are no letters, digits
        or spaces. A normaliser may make such a character of any that is no letter, digit or space.
        """
        if self._signs.search(text) is None:
            return set()
        return {char for char in set(text) if self._signs.fullmatch(char)}

    def whole(self, text: str) -> str | None:
        """The first control token in a text."""
        found = self._whole.search(text)
        return None if found is None else found.group()

    def places(self, text: str) -> list[Span]:
        """Return the spans in a rendered text that may be control tokens; one may begin in another."""
        if self._normalizing:
            return [(0, len(text))]
        return [match.span(1) for match in self._anywhere.finditer(text)]

    def middle(self, text: str, is_key: bool) -> list[Span]:
        """The whole text, where it stands in a control token and has none of its signs."""
        span = self._inside(text, is_key)
        return [] if self._signs.search(text) else span

    def spans(self, text: str, is_key: bool) -> list[Span]:
        """Whole control tokens; the beginning of one at the text's end, the end of one at its beginning, and texts
        that stand in the middle of one.
        """
        inside = self._inside(text, is_key)
        if inside:
            return inside
        spans = [match.span() for match in self._whole.finditer(text)]
        start, end = len(text) - len(text.lstrip()), len(text.rstrip())
        if start >= end:
            return spans
        head = next((head for head in self._heads.get(text[end - 1], ()) if text.endswith(head, start, end)), "")
        tail = next((tail for tail in self._tails.get(text[start], ()) if text.startswith(tail, start, end)), "")
        spans += [span for span in ((end - len(head), end), (start, start + len(tail))) if span[0] < span[1]]
        return _merged(spans)

    @functools.lru_cache(8)  # noqa: B019 (there are few, and they are kept as long)
    def apart(self, literals: frozenset[str]) -> list[str]:
        """Return the literals of a template that, while they are whole, neither are part of a control token nor contain
        one."""
        return [text for text in literals if self._signs.search(text) and not self._meets(text.casefold())]

    def _inside(self, text: str, is_key: bool) -> list[Span]:
        # Templates trim texts, and change the case of letters. Texts that are keys are not built on.
        trimmed = text.strip() if len(text) <= self._longest or text[:1].isspace() or text[-1:].isspace() else ""
        if is_key or not 0 < len(trimmed) <= self._longest or text in _WORDS:
            return []
        folded, start = trimmed.casefold(), len(text) - len(text.lstrip())
        return [(start, start + len(trimmed))] if any(folded in token for token in self._folded) else []

    def _meets(self, literal: str) -> bool:
        return any(_meet(literal, token) for token in self._folded)


def _signs_of(token: str) -> set[str]:
    ends = {token[0], token[-1]}
    cased = {char for end in ends for char in (end.lower(), end.upper()) if len(char) == 1}
    return ends | cased | {char for char in token if not (char.isalnum() or char.isspace() or char == "_")}


def _one_of(chars: set[str], also: str) -> str:
    listed = "|".join([*map(re.escape, sorted(chars)), *([also] if also else [])])
    return listed or r"(?!)"


def _meet(one: str, other: str) -> bool:
    """True where one text is in the other, or one ends as the other begins."""
    shorter = min(len(one), len(other))
    ends = any(one[-n:] == other[:n] or other[-n:] == one[:n] for n in range(1, shorter))
    return ends or one in other or other in one


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
