"""From the engine's log-probabilities to those of the API."""

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


def completion_logprobs(
    entries: Sequence[TokenLogprobs], tokenizer: Tokenizer, offset: int
) -> tuple[CompletionLogprobs, int]:
    """The older form of /v1/completions, and the offset behind it.

    offset: characters of the tokens before. As in OpenAI's API the sampled token is always among the top.
    """
    lists = CompletionLogprobs([], [], [], [])
    for entry in entries:
        name = tokenizer.token_text(entry.token_id)
        lists.tokens.append(name)
        lists.token_logprobs.append(_floored(entry.logprob))
        top = {text: _floored(lp) for (text, _), lp in _named(entry.top, tokenizer)}
        lists.top_logprobs.append({name: _floored(entry.logprob)} | top)
        lists.text_offset.append(offset)
        offset += len(name)
    return lists, offset


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
