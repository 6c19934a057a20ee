"""Marking: a way to mark a request's strings, so that the text that a template makes of them shows where they are."""

import bisect
import itertools
import re
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from jaxinfer.text.template.markers import Markers, Span

_SYMBOLS = [
    chr(code) for code in itertools.chain(range(0x2801, 0x2900), range(0x4DC0, 0x4E00), range(0x1D000, 0x1D0F6))
]
"""Braille, hexagrams, Byzantine notes: no letters, digits or spaces, and printable, as signs are, so that what trims,
splits, measures, orders or quotes a text treats them alike."""


class Marked(NamedTuple):
    """A rendered text with symbols for signs, and the spans that markers were around."""

    text: str
    spans: list[Span]
    symbols: re.Pattern[str]

    def touches(self, span: Span) -> bool:
        """True where a part of the span is marked."""
        start, end = span
        # Spans are in order. One of which the template has left nothing stands between its neighbours.
        first = bisect.bisect_right(self.spans, start, key=lambda one: one[1])
        around = first < len(self.spans) and self.spans[first][0] < end
        return around or self.symbols.search(self.text, start, end) is not None


class Marking:
    """Symbols for signs, one for one, and markers around spans.

    signs: to replace by symbols. beside: texts that have none of these symbols. kept: texts in which signs stay. spans:
    of a string, and whether it is a key, what gets markers.
    """

    def __init__(
        self,
        spans: Callable[[str, bool], list[Span]],
        signs: Collection[str] = (),
        beside: str = "",
        kept: Iterable[str] = (),
    ):
        self._spans, self._markers = spans, Markers()
        taken = {*beside, *signs}
        symbols = dict(zip(sorted(signs), (symbol for symbol in _SYMBOLS if symbol not in taken), strict=False))
        self.complete = len(symbols) == len(signs)
        """False where there are not symbols enough."""
        self._to, self._back = str.maketrans(symbols), str.maketrans({to: sign for sign, to in symbols.items()})
        self._symbols = re.compile("|".join(symbols.values()) or r"(?!)")
        longest_first = sorted(kept, key=len, reverse=True)
        self._kept = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None

    def mark(self, text: str, is_key: bool) -> str:
        """A string of the request, marked."""
        parts = self._kept.split(text) if self._kept else [text]
        # Every other part is one that is kept.
        replaced = "".join(part if i % 2 else part.translate(self._to) for i, part in enumerate(parts))
        return self._markers.around(replaced, self._spans(text, is_key))

    def read(self, rendered: str | None, text: str) -> Marked | None:
        """Take the marks out of a rendered text; None if there is none, or it is not `text` without the marks."""
        cut = None if rendered is None else self._markers.taken_out(rendered)
        if cut is None or cut[0].translate(self._back) != text:
            return None
        return Marked(*cut, self._symbols)
