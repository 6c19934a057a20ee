"""NumberBounds: how many digits a number of JSON may have, which a grammar leaves open."""

import re
from collections.abc import Container, Sequence
from typing import NamedTuple

import numpy as np

from jaxinfer.grammar.bits import bits_of
from jaxinfer.grammar.schema.scalars import FRACTION_DIGITS

INTEGER_DIGITS = 20
"""Digits of the largest unsigned integer of 64 bits."""
_LARGEST_EXPONENT = 279
"""Largest exponent: a float64, at most 1.8e308, then still holds a number with the most digits before the point."""
_TAIL = 64
_NUMBER = re.compile(rb"(?:^|[\s:,\[])-?([0-9]+)(?:\.([0-9]*))?(?:[eE][+-]?([0-9]*))?$")
_QUOTING = re.compile(rb'\\[^\n]?|["\n]')
"""Pairs that escape, quotes, and newlines, which no string of JSON contains."""
_LEADING = re.compile(rb"[0-9]+")


class Written(NamedTuple):
    """The end of a text of JSON, or of one with JSON in it.

    in_string: whether it is inside a string. escapes: whether it ends with a backslash that the next letter belongs to.
    """

    tail: bytes = b""
    in_string: bool = False
    escapes: bool = False

    def then(self, text: bytes) -> "Written":
        """Return the end once more text has come. A newline ends what free text beside JSON leaves open."""
        pieces = _QUOTING.findall(b"\\" * self.escapes + text)
        in_string = self.in_string
        for piece in pieces:
            in_string = not in_string if piece == b'"' else in_string and piece != b"\n"
        return Written((self.tail + text)[-_TAIL:], in_string, pieces[-1:] == [b"\\"])


class NumberBounds:
    """The tokens that would make a number too long: a model that rambles writes digits without end.

    token_bytes: what each id writes. words: of a mask. controls: ids of tokens that are in no JSON, such as tags.
    """

    def __init__(self, token_bytes: Sequence[bytes], words: int, controls: Container[int] = ()):
        self._bytes = token_bytes
        self._controls = controls
        led: dict[int, list[int]] = {}
        others = list[int]()
        for id, own in enumerate(token_bytes):
            if found := _LEADING.match(own):
                led.setdefault(len(found[0]), []).append(id)
            elif own.startswith((b'"', b"z", b"Z")):
                others.append(id)
        self._others = bits_of(others, words)
        self._longest = max(led, default=0)
        self._too_long = [
            bits_of([id for length, ids in led.items() if length > left for id in ids], words)
            for left in range(self._longest)
        ]

    def follow(self, written: Written, token: int) -> Written:
        """Return what has to be known of a text after one more token."""
        return Written() if token in self._controls else written.then(self._bytes[token])

    def bound(self, written: Written, row: np.ndarray) -> None:
        """Take tokens that make a number too long out of a mask. Free text, in which a quote or any letter may follow,
        is no number; where nothing else may follow, the grammar itself asks for as many digits."""
        left = None if written.in_string else digits_left(written.tail)
        if left is None or left >= self._longest or (row & self._others).any():
            return
        bounded = row & ~self._too_long[left]
        if bounded.any():
            row[:] = bounded


def digits_left(tail: bytes) -> int | None:
    """Return how many digits the number that ends a text may still have; None where it ends with no number."""
    found = _NUMBER.search(tail)
    if found is None:
        return None
    whole, fraction, exponent = found.groups()
    if exponent is not None:
        third = len(exponent) == 2 and int(exponent) * 10 + 9 <= _LARGEST_EXPONENT
        return int(third) if len(exponent) > 1 else 2 - len(exponent)
    if fraction is not None:
        return max(FRACTION_DIGITS - len(fraction), 0)
    return max(INTEGER_DIGITS - len(whole), 0)
