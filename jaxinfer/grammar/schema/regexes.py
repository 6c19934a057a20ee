"""Regular expressions of strings: what ECMA-262 means by one, in llguidance's dialect, and a few that rules need."""

import re
from collections.abc import Iterable, Sequence

_ANY = r"[\s\S]*"
_DIALECT = {"&&": r"&\&", "--": r"-\-", "~~": r"~\~"}
"""Pairs that are operators within a class of llguidance's dialect, and letters in ECMA-262's."""
_MOST_NESTED = 80
"""Letters of a text that a pattern excludes: each is a group within the last one, and llguidance reads 81."""
_IN_CLASS = re.compile(r"\\.|\[|&&|--|~~|\]", re.DOTALL)
_OUTSIDE = re.compile(r"\\.|\[\^?\]?|\.|\(\?[A-Za-z-]+[:)]|[^\\\[.(]+|\(", re.DOTALL)
_LETTERS_OF_LINES = r"[^\n\r\u2028\u2029]"
_EMPTY_CLASSES = {"[]": r"[^\s\S]", "[^]": r"[\s\S]"}


def translated(pattern: str) -> str:
    """Return the regular expression of llguidance's dialect that means what ECMA-262 means by one: its `.` ends at four
    letters, its `[]` is empty, and it has no classes within a class, and no operators between them."""
    pieces, at, in_lines = list[str](), 0, True
    while at < len(pattern):
        found = _OUTSIDE.match(pattern, at)
        if found is None:
            return pattern
        piece, at = found[0], found.end()
        in_lines &= not (piece.startswith("(?") and "s" in piece.partition("-")[0])
        if piece in ("[", "[^"):
            inner, at = _class_from(pattern, at)
            piece += inner
        elif piece == "." and in_lines:
            piece = _LETTERS_OF_LINES
        pieces.append(_EMPTY_CLASSES.get(piece, piece))
    return "".join(pieces)


def _class_from(pattern: str, at: int) -> tuple[str, int]:
    """The rest of a class, and where it ends."""
    pieces = list[str]()
    for found in _IN_CLASS.finditer(pattern, at):
        pieces.append(pattern[at : found.start()])
        pieces.append(r"\[" if found[0] == "[" else _DIALECT.get(found[0], found[0]))
        at = found.end()
        if found[0] == "]":
            break
    else:
        pieces.append(pattern[at:])
        at = len(pattern)
    return "".join(pieces), at


def one_of(texts: Iterable[str]) -> str:
    """Return a pattern that these strings match, and no others."""
    return f"^(?:{'|'.join(map(re.escape, texts))})$"


def of_length(least: int, most: int | None) -> str:
    """Return a pattern of strings with so many characters."""
    return rf"^[\s\S]{{{least},{'' if most is None else most}}}$"


def not_one_of(texts: Sequence[str]) -> str | None:
    """Return a pattern that all strings match but these; None if one of them is too long to write such a pattern."""
    if max(map(len, texts), default=0) > _MOST_NESTED:
        return None
    return f"^{_beyond(sorted({*texts}))}$"


def _beyond(texts: Sequence[str]) -> str:
    """Return what else may follow where strings begin alike: ends before, and other letters."""
    by_first: dict[str, list[str]] = {}
    for text in texts:
        if text:
            by_first.setdefault(text[0], []).append(text[1:])
    ways = [] if "" in texts else [""]
    if by_first:
        letters = "".join(map(_escaped_in_class, by_first))
        ways.append(f"[^{letters}]{_ANY}")
        ways += [f"{re.escape(letter)}{_beyond(rest)}" for letter, rest in by_first.items()]
    else:
        ways.append(r"[\s\S]+")
    return f"(?:{'|'.join(ways)})"


def _escaped_in_class(letter: str) -> str:
    return f"\\{letter}" if letter in r"\]^-[&~" else letter
