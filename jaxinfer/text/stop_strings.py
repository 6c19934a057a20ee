"""Stop strings: ends a text where one of several strings appears in it."""

from collections.abc import Sequence
from typing import NamedTuple


class StopScan(NamedTuple):
    """text: what may be shown now. matched: the stop string that ended the text, or None."""

    text: str
    matched: str | None


class StopStrings:
    """Looks for stop strings in a text that arrives in pieces.

    Text is held back while it may be the beginning of a stop string. The result does not depend on how
    the text is cut into pieces: the string that is complete first wins, the longest of those that end
    at the same character.

    include: the text that is shown ends with the stop string instead of before it.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False):
        self._stops = tuple(stops)
        self._include = include
        self._held = ""

    def push(self, piece: str) -> StopScan:
        """The text that can be shown now. After a match nothing may follow."""
        if not self._stops:
            return StopScan(piece, None)
        text = self._held + piece
        match = self._first_match(text)
        if match is not None:
            start, stop = match
            self._held = ""
            return StopScan(text[: start + len(stop) if self._include else start], stop)
        cut = len(text) - self._suffix_length(text)
        self._held = text[cut:]
        return StopScan(text[:cut], None)

    def flush(self) -> str:
        """Return the text that was held back: the text ended, so it is no stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        found = [(start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(found, key=lambda match: (match[0] + len(match[1]), match[0])) if found else None

    def _suffix_length(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        return max(_overlap(text, stop) for stop in self._stops)


def _overlap(text: str, stop: str) -> int:
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0:
        if stop.startswith(text[at:]):
            return len(text) - at
        at = text.find(stop[0], at + 1)
    return 0
