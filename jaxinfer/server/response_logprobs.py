"""TextLogprobs: which log-probabilities belong to a piece of an answer's text."""

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
        """Tokens of the next text. Those before it are dropped: nothing shows them."""
        tokens, self._tokens = self._tokens, []
        if not tokens:
            return []
        begin = b"".join(bytes(token.bytes) for token in tokens).find(text.encode())
        if begin < 0:  # it was written otherwise, as half a character is
            return tokens
        end, at, found = begin + len(text.encode()), 0, []
        for i, token in enumerate(tokens):
            if at >= end:
                self._tokens = tokens[i:]
                break
            at += len(token.bytes)
            if at > begin:
                found.append(token)
        return found
