"""OutputAssembler: what the engine adds to a choice, as text that a user may see."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxinfer.engine.types import FinishReason, TokenDelta, TokenLogprobs
from jaxinfer.sampling import SamplingParams
from jaxinfer.text.stop_strings import StopStrings
from jaxinfer.text.tokenizer.detokenizer import Detokenizer
from jaxinfer.text.tokenizer.tokenizer import Tokenizer


class ChoiceDelta(NamedTuple):
    """Output that one engine step adds to a choice, as the user sees it.

    token_ids and logprobs are those of the kept tokens. finish_reason is set once, on the last one.
    stop_reason: the stop string or the stop token id that the request named and that ended it.
    stop_at: tokens that are kept if a stop string was found; `stop(id, index)` of the engine must then be called.
    error, param, cached_tokens and prompt_logprobs: of TokenDelta.
    """

    index: int
    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs] | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    stop_at: int | None
    error: str | None = None
    cached_tokens: int = 0
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
    param: str | None = None


def join_deltas(deltas: Sequence[ChoiceDelta]) -> list[ChoiceDelta]:
    """Join deltas to one for each choice, in the order in which choices first appear."""
    by_index: dict[int, ChoiceDelta] = {}
    for delta in deltas:
        earlier = by_index.get(delta.index)
        by_index[delta.index] = delta if earlier is None else _joined(earlier, delta)
    return list(by_index.values())


def _joined(first: ChoiceDelta, then: ChoiceDelta) -> ChoiceDelta:
    # What ends a choice is in its last delta; what the prompt brings is in whichever comes first.
    return then._replace(
        text=first.text + then.text,
        token_ids=[*first.token_ids, *then.token_ids],
        logprobs=_joined_logprobs(first.logprobs, then.logprobs),
        cached_tokens=max(first.cached_tokens, then.cached_tokens),
        prompt_logprobs=then.prompt_logprobs if first.prompt_logprobs is None else first.prompt_logprobs,
    )


def _joined_logprobs(
    first: Sequence[TokenLogprobs] | None, then: Sequence[TokenLogprobs] | None
) -> Sequence[TokenLogprobs] | None:
    """None only where both are: a delta that ends a choice without a token may have none."""
    if first is None or then is None:
        return then if first is None else first
    return [*first, *then]


class OutputAssembler:
    """Detokenises one choice, looks for stop strings, and counts the tokens that are kept.

    A choice that a stop string ended is over for the user at once; what the engine still sends for it
    is dropped. The token that a stop id names gives no text, except with `include_stop_str_in_output`.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: np.ndarray | Sequence[int], params: SamplingParams, index: int
    ):
        self.index = index
        self.finished = False
        self.num_tokens = 0
        self._params = params
        self._detokenizer = Detokenizer(tokenizer, prompt_token_ids, skip_special_tokens=params.skip_special_tokens)
        self._stops = StopStrings(params.stop, include=params.include_stop_str_in_output)

    def push(self, delta: TokenDelta) -> ChoiceDelta | None:
        """The delta that a user sees; None where the choice is over already."""
        if self.finished:
            return None
        text, kept, matched = self._read(delta)
        self.num_tokens += kept
        reason = FinishReason.STOP if matched is not None else delta.finish_reason
        self.finished = reason is not None
        return ChoiceDelta(
            index=self.index,
            text=text,
            token_ids=delta.token_ids[:kept],
            logprobs=None if delta.logprobs is None else delta.logprobs[:kept],
            finish_reason=reason,
            stop_reason=matched if matched is not None else self._named_stop(delta),
            stop_at=self.num_tokens if matched is not None and delta.finish_reason is None else None,
            error=delta.error,
            param=delta.param,
            cached_tokens=delta.cached_tokens,
            prompt_logprobs=delta.prompt_logprobs,
        )

    def _read(self, delta: TokenDelta) -> tuple[str, int, str | None]:
        """Text, how many of the tokens are kept, and the stop string found."""
        shown = []
        visible = len(delta.token_ids) - self._ends_with_stop_token(delta)
        for i, token in enumerate(delta.token_ids[:visible]):
            text, matched = self._scan(self._detokenizer.push(token), self.num_tokens + i + 1)
            shown.append(text)
            if matched is not None:
                return "".join(shown), i + 1, matched
        if delta.finish_reason is not None:
            text, matched = self._scan(self._detokenizer.flush(), self.num_tokens + len(delta.token_ids))
            shown.append(text)
            if matched is None:
                shown.append(self._stops.flush())
            return "".join(shown), len(delta.token_ids), matched
        return "".join(shown), len(delta.token_ids), None

    def _scan(self, piece: str, tokens: int) -> tuple[str, str | None]:
        # The text of the first `min_tokens` tokens is no part of a stop string, as in vLLM.
        if tokens <= self._params.min_tokens:
            return piece, None
        return self._stops.push(piece)

    def _ends_with_stop_token(self, delta: TokenDelta) -> bool:
        return delta.stop_token_id is not None and not self._params.include_stop_str_in_output

    def _named_stop(self, delta: TokenDelta) -> int | None:
        return delta.stop_token_id if delta.stop_token_id in self._params.stop_token_ids else None
