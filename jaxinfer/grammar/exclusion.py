"""Exclusion: strings that the text of a grammar must not contain, which no grammar can say of another one."""

from collections.abc import Iterator, Sequence

import numpy as np

from jaxinfer.grammar.bits import bits_of

_BREAK = b"\n\n"
"""May stand before a call: models that think begin their answer so."""


class Exclusion:
    """Tokens that would write one of some strings. A text that begins with one is a call, in which all are free.

    strings: each begins a call. token_bytes: what each id writes. words: of a mask.
    """

    def __init__(self, strings: Sequence[bytes], token_bytes: Sequence[bytes], words: int):
        self._bytes = token_bytes
        self._begins = [start + each for each in strings for start in (b"", _BREAK)]
        self._longest = max(map(len, strings))
        self._completing = {
            (each, written): self._ids(each, written, words) for each in strings for written in range(len(each))
        }
        self._opening = {rest: bits_of([id for id, own in enumerate(token_bytes) if own.startswith(rest)], words)
                         for rest in self._rests()}  # fmt: skip

    def follow(self, text: bytes | None, token: int) -> bytes | None:
        """Return what has to be known of a text after one more token: None where it is a call. text: known so far;
        empty at first, and whole while it may become a call."""
        if text is None:
            return None
        more = text + self._bytes[token]
        if more.startswith(tuple(self._begins)):
            return None
        return more if self._may_open(more) else b"\0" + more[-self._longest + 1 :]

    def exclude(self, text: bytes | None, row: np.ndarray) -> None:
        """Take tokens that complete a string out of a mask, unless they begin a call."""
        if text is None:
            return
        banned = np.zeros_like(row)
        for (each, written), ids in self._completing.items():
            if text.endswith(each[:written]):
                banned |= ids
        for begin in self._begins if self._may_open(text) else ():
            if begin.startswith(text):
                banned &= ~self._opening[begin[len(text) :]]
        row &= ~banned

    def begins(self) -> Sequence[bytes]:
        """Return all that a call may begin with."""
        return self._begins

    def _may_open(self, text: bytes) -> bool:
        return any(begin.startswith(text) for begin in self._begins)

    def _ids(self, string: bytes, written: int, words: int) -> np.ndarray:
        rest = string[written:]
        inside = (lambda own: rest in own) if not written else (lambda own: own.startswith(rest))
        return bits_of([id for id, own in enumerate(self._bytes) if inside(own)], words)

    def _rests(self) -> Iterator[bytes]:
        """Return what may be left to write of all that a call begins with."""
        return (begin[written:] for begin in {*self._begins} for written in range(len(begin)))
