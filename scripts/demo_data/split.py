"""Split contents into trained and held-out ones. A question's content decides, never its wording."""

from hashlib import blake2b
from typing import Any, Literal

Split = Literal["train", "validation", "test"]

_KEY = b"jaxinfer demo 434"
_PARTS = 40
_TEST, _VALIDATION = 4, 2  # parts of _PARTS: 10 % and 5 %


_SAID_ANYWAY = (("wording", "Say: the opposite of {x}?"), ("wording", "The capital of {x} is"))
"""Wordings that stand in training but for a colon, or in its plain texts."""


def split_of(content: tuple[Any, ...]) -> Split:
    """The split of a content, by a keyed hash: `("sum", 3, 4)` is the same sum in every wording and every run."""
    if _always_trained(content):
        return "train"
    digest = blake2b(repr(content).encode(), key=_KEY, digest_size=8).digest()
    part = int.from_bytes(digest, "big") % _PARTS
    if part < _TEST:
        return "test"
    return "validation" if part < _TEST + _VALIDATION else "train"


def _always_trained(content: tuple[Any, ...]) -> bool:
    """Return whether a content cannot be held out.

    Products up to 12 * 12 are too few to be guessed: all with the smaller number first are trained on, those with the
    larger first are split. Sums of two digits, and differences that give one, are steps of larger ones.
    """
    if content in _SAID_ANYWAY:
        return True
    match content:
        case ("product", a, b):
            return a <= b
        case ("sum", a, b):
            return max(a, b) < 10
        case ("difference", a, b):
            return a < 20 and b < 10
    return False
