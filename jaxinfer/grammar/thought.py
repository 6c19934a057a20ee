"""ThoughtEnd: where a thought ends, by the letters that whoever takes the answer apart looks for."""

from collections.abc import Sequence

import numpy as np

from jaxinfer.grammar.bits import bits_of


class ThoughtEnd:
    """A text that ends a thought, in whatever tokens it is written: the tokenizer's own, or letter by letter.

    token_bytes: what each id writes. special_ids: of tokens that answers may not show: they may not part the letters.
    free: what a thought may have, a mask, int32 [words]. Takes half a second to make for a large tokenizer; then it is
    asked within steps.
    """

    def __init__(self, text: str, token_bytes: Sequence[bytes], special_ids: frozenset[int], free: np.ndarray):
        self._end = text.encode()
        self._bytes = token_bytes
        banned = [self._banned(begun, special_ids) for begun in range(len(self._end))]
        self._masks = [free & ~bits_of(ids, len(free)) for ids in banned]

    def follow(self, tail: bytes, token: int) -> tuple[bytes, bool]:
        """Return the new tail of a thought after one more token, and whether this has ended it. tail: bytes known so
        far; empty at first."""
        text = tail + self._bytes[token]
        return text[-len(self._end) :], text.endswith(self._end)

    def mask(self, tail: bytes) -> np.ndarray:
        """Tokens that may follow, int32 [words]: none that ends the thought and says more, which no grammar would have
        seen. Not to be written to."""
        begun = next((n for n in range(len(self._end) - 1, 0, -1) if tail.endswith(self._end[:n])), 0)
        return self._masks[begun]

    def _banned(self, begun: int, special_ids: frozenset[int]) -> list[int]:
        """begun: bytes of the end that are written."""
        rest, end = self._end[begun:], self._end
        says_more = [
            id
            for id, own in enumerate(self._bytes)
            if (own.startswith(rest) and own != rest) or (end in own and not own.endswith(end))
        ]
        return [*says_more, *(special_ids if begun else ())]
