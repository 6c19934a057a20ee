"""TextLogprobs: which log-probabilities belong to a piece of an answer's text."""

import itertools
from collections.abc import Sequence

from jaxinfer.server.reply_schema import TokenLogprob


class TextLogprobs:
    """Log-probabilities of an answer's tokens, until the text that they are comes.

    Text may come later than its tokens, and tags never do: tokens are found by their bytes.
    """

    def __init__(self) -> None:
        self._tokens: list[TokenLogprob] = []

    def push(self, tokens: Sequence[TokenLogprob]) -> None:
        """Add the next tokens."""
        self._tokens += tokens

    def take(self, text: str) -> list[TokenLogprob]:
        """Return the tokens of the next text. Those before it are dropped: nothing shows them."""
        tokens, self._tokens = self._tokens, []
        if not tokens:
            return []
        bounds = list(itertools.accumulate((len(token.bytes) for token in tokens), initial=0))
        wanted = text.encode()
        begin = _place(b"".join(bytes(token.bytes) for token in tokens), wanted, frozenset(bounds))
        if begin is None:  # it was written otherwise, as half a character is
            return tokens
        end = begin + len(wanted)
        self._tokens = [token for token, start in zip(tokens, bounds, strict=False) if start >= end]
        spans = zip(tokens, bounds, bounds[1:], strict=False)
        return [token for token, start, past in spans if past > begin and start < end]


def _place(written: bytes, wanted: bytes, bounds: frozenset[int]) -> int | None:
    """Return where a text begins: best where tokens begin and end, since a tag may have its letters, too."""
    places: list[int] = []
    at = written.find(wanted)
    while at >= 0:
        places.append(at)
        at = written.find(wanted, at + 1)
    return min(places, key=lambda at: (at not in bounds, at + len(wanted) not in bounds, at), default=None)
