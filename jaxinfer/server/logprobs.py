"""From the engine's log-probabilities to those of the API."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxinfer.engine.types import TokenLogprobs
from jaxinfer.server.reply_schema import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from jaxinfer.text import Tokenizer
from jaxinfer.text.tokenizer.detokenizer import Detokenizer

FLOOR = -9999.0
"""OpenAI's figure for a token that cannot come: JSON has no infinity."""


class LogprobForm:
    """Conversion of log-probabilities to a reply's form. by_id: tokens are called `token_id:5` instead of by their
    text."""

    def __init__(self, tokenizer: Tokenizer, *, by_id: bool = False):
        self._tokenizer = tokenizer
        self._by_id = by_id

    def chat(self, entries: Sequence[TokenLogprobs]) -> ChatLogprobs:
        """The form of /v1/chat/completions."""
        return ChatLogprobs([self._chat_token(entry) for entry in entries])

    def completion(self, entries: Sequence[TokenLogprobs | None], offsets: "TextOffsets") -> CompletionLogprobs:
        """The older form of /v1/completions. As in OpenAI's API the sampled token is always among the top."""
        lists = CompletionLogprobs([], [], [], [])
        for entry in entries:
            assert entry is not None
            name = self._name(entry.token_id)
            lists.tokens.append(name)
            lists.token_logprobs.append(_floored(entry.logprob))
            top = {self._name(token): _floored(logprob) for token, logprob in entry.top}
            lists.top_logprobs.append({name: _floored(entry.logprob)} | top)
            lists.text_offset.append(offsets.push(entry.token_id))
        return lists

    def echoed(self, first: int, entries: Sequence[TokenLogprobs | None], offsets: "TextOffsets") -> CompletionLogprobs:
        """Return the log-probabilities of a prompt that is echoed; its first token has none."""
        begin = CompletionLogprobs([self._name(first)], [None], [None], [offsets.push(first)])
        return join_logprobs([begin, self.completion(entries[1:], offsets)])

    def prompt(self, entries: Sequence[TokenLogprobs | None]) -> list[dict[str, Any] | None]:
        """vLLM's form: a token of the prompt -> `logprob`, `rank`, `decoded_token`, by id; None for the first."""
        return [None if entry is None else self._prompt_token(entry) for entry in entries]

    def _chat_token(self, entry: TokenLogprobs) -> TokenLogprob:
        top = [TopLogprob(self._name(token), _floored(lp), self._bytes(token)) for token, lp in entry.top]
        return TokenLogprob(self._name(entry.token_id), _floored(entry.logprob), self._bytes(entry.token_id), top)

    def _prompt_token(self, entry: TokenLogprobs) -> dict[str, Any]:
        ranked = [(token, logprob, i + 1) for i, (token, logprob) in enumerate(entry.top)]
        return {
            str(token): {"logprob": _floored(lp), "rank": rank, "decoded_token": self._tokenizer.token_text(token)}
            for token, lp, rank in [(entry.token_id, entry.logprob, entry.rank), *ranked]
        }

    def _name(self, token: int) -> str:
        return f"token_id:{token}" if self._by_id else self._tokenizer.token_text(token)

    def _bytes(self, token: int) -> list[int]:
        return list(self._tokenizer.pieces.piece(token))


class TextOffsets:
    """Offsets of a choice's tokens in its text, in characters; half a character counts with its end.

    before: tokens that stand before the first one. length: characters of the text so far.
    """

    def __init__(
        self, tokenizer: Tokenizer, before: np.ndarray | Sequence[int], *, skip_special_tokens: bool, length: int = 0
    ):
        self._detokenizer = Detokenizer(tokenizer, before, skip_special_tokens=skip_special_tokens)
        self.length = length

    def push(self, token_id: int) -> int:
        """The offset of the next token."""
        at = self.length
        self.length += len(self._detokenizer.push(token_id))
        return at


def join_logprobs(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    """One after another."""
    return CompletionLogprobs(
        tokens=[token for part in parts for token in part.tokens],
        token_logprobs=[logprob for part in parts for logprob in part.token_logprobs],
        top_logprobs=[top for part in parts for top in part.top_logprobs],
        text_offset=[offset for part in parts for offset in part.text_offset],
    )


def _floored(logprob: float) -> float:
    return max(logprob, FLOOR)
