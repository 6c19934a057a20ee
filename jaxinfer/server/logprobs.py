"""From the engine's log-probabilities to those of the API."""

import codecs
from collections.abc import Sequence
from typing import Any

from jaxinfer.engine.types import TokenLogprobs
from jaxinfer.server.responses import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from jaxinfer.text import Tokenizer

FLOOR = -9999.0
"""OpenAI's figure for a token that cannot come: JSON has no infinity."""


def chat_logprobs(entries: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> ChatLogprobs:
    """The form of /v1/chat/completions."""

    def one(entry: TokenLogprobs) -> TokenLogprob:
        top = [TopLogprob(name, _floored(lp), list(raw)) for (name, raw), lp in _named(entry.top, tokenizer)]
        name, raw = tokenizer.token_text(entry.token_id), tokenizer.pieces.piece(entry.token_id)
        return TokenLogprob(name, _floored(entry.logprob), list(raw), top)

    return ChatLogprobs([one(entry) for entry in entries])


class TextOffsets:
    """Where each token of a choice begins in its text, in characters; half a character counts with its end."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool):
        self._pieces = tokenizer.pieces
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def push(self, token_id: int) -> int:
        """The offset of the next token."""
        at = self._length
        if token_id not in self._skipped:
            self._length += len(self._utf8.decode(self._pieces.piece(token_id)))
        return at


def completion_logprobs(
    entries: Sequence[TokenLogprobs], tokenizer: Tokenizer, offsets: TextOffsets
) -> CompletionLogprobs:
    """The older form of /v1/completions. As in OpenAI's API the sampled token is always among the top."""
    lists = CompletionLogprobs([], [], [], [])
    for entry in entries:
        name = tokenizer.token_text(entry.token_id)
        lists.tokens.append(name)
        lists.token_logprobs.append(_floored(entry.logprob))
        top = {text: _floored(lp) for (text, _), lp in _named(entry.top, tokenizer)}
        lists.top_logprobs.append({name: _floored(entry.logprob)} | top)
        lists.text_offset.append(offsets.push(entry.token_id))
    return lists


def prompt_logprobs(entries: Sequence[TokenLogprobs | None], tokenizer: Tokenizer) -> list[dict[str, Any] | None]:
    """vLLM's form: a token of the prompt -> `logprob`, `rank`, `decoded_token`, by id; None for the first."""

    def one(entry: TokenLogprobs) -> dict[str, Any]:
        ranked = [(token, logprob, i + 1) for i, (token, logprob) in enumerate(entry.top)]
        return {
            str(token): {"logprob": _floored(lp), "rank": rank, "decoded_token": tokenizer.token_text(token)}
            for token, lp, rank in [(entry.token_id, entry.logprob, entry.rank), *ranked]
        }

    return [None if entry is None else one(entry) for entry in entries]


def _named(top: Sequence[tuple[int, float]], tokenizer: Tokenizer) -> list[tuple[tuple[str, bytes], float]]:
    return [((tokenizer.token_text(token), tokenizer.pieces.piece(token)), logprob) for token, logprob in top]


def _floored(logprob: float) -> float:
    return max(logprob, FLOOR)
