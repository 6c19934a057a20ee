"""RequestOutput: what a prompt has got so far, in the shape of vLLM's offline API."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxinfer.engine.types import GenerateRequest, TokenDelta, TokenLogprobs
from jaxinfer.text.answer.parser import ParsedAnswer
from jaxinfer.text.output import ChoiceDelta, OutputAssembler
from jaxinfer.text.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Logprob:
    """A token's log-probability (natural logarithm), its rank (1 is the likeliest) and its text."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass
class CompletionOutput:
    """One continuation of a prompt.

    token_ids: the kept tokens, the one that ended it included. logprobs: a mapping from token id for each
    of them, the sampled token first. finish_reason: `stop`, `length`, `abort`, `error`, or None while it
    goes on. stop_reason: the stop string or stop token id that the request named and that ended it. parsed: of a chat,
    the text taken apart into content, reasoning and tool calls.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    parsed: ParsedAnswer | None = None


@dataclass
class RequestOutput:
    """A prompt and its continuations. prompt is None where token ids were given. num_accepted_prediction_tokens,
    num_rejected_prediction_tokens: drafts from its prediction that are part of an output, and those that are not."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0
    num_accepted_prediction_tokens: int = 0
    num_rejected_prediction_tokens: int = 0


class OutputCollector:
    """Gathers what the engine sends for one request."""

    def __init__(self, tokenizer: Tokenizer, request: GenerateRequest, prompt: str | None):
        self._tokenizer = tokenizer
        ids, params = list(request.prompt_token_ids), request.sampling
        self._choices = [OutputAssembler(tokenizer, ids, params, index) for index in range(params.n)]
        self.output = RequestOutput(
            request.request_id, prompt, ids, [CompletionOutput(index) for index in range(params.n)]
        )

    def push(self, delta: TokenDelta) -> ChoiceDelta | None:
        """Takes one delta; returns what it adds, or None where its choice is over already."""
        self.output.num_cached_tokens = max(self.output.num_cached_tokens, delta.cached_tokens)
        self.output.num_accepted_prediction_tokens += delta.accepted_prediction
        self.output.num_rejected_prediction_tokens += delta.rejected_prediction
        if delta.prompt_logprobs is not None:
            entries = [None if entry is None else self._by_id(entry) for entry in delta.prompt_logprobs]
            self.output.prompt_logprobs = entries
        shown = self._choices[delta.index].push(delta)
        if shown is not None:
            self._add(self.output.outputs[delta.index], shown)
            self.output.finished = all(choice.finished for choice in self._choices)
        return shown

    def snapshot(self) -> RequestOutput:
        """A copy of the output so far, which later tokens do not change."""
        outputs = [
            dataclasses.replace(each, token_ids=list(each.token_ids), logprobs=each.logprobs and list(each.logprobs))
            for each in self.output.outputs
        ]
        return dataclasses.replace(self.output, outputs=outputs)

    def _add(self, output: CompletionOutput, shown: ChoiceDelta) -> None:
        output.text += shown.text
        output.token_ids += shown.token_ids
        if shown.logprobs is not None:
            self._add_logprobs(output, shown.logprobs)
        if shown.finish_reason is not None:
            output.finish_reason = shown.finish_reason.value
            output.stop_reason = shown.stop_reason
            output.error = shown.error

    def _add_logprobs(self, output: CompletionOutput, entries: Sequence[TokenLogprobs]) -> None:
        output.logprobs = output.logprobs or []
        output.logprobs += map(self._by_id, entries)
        output.cumulative_logprob = (output.cumulative_logprob or 0.0) + sum(entry.logprob for entry in entries)

    def _by_id(self, entry: TokenLogprobs) -> dict[int, Logprob]:
        name = self._tokenizer.token_text
        found = {entry.token_id: Logprob(entry.logprob, entry.rank, name(entry.token_id))}
        for i, (token, logprob) in enumerate(entry.top):
            found.setdefault(token, Logprob(logprob, i + 1, name(token)))
        return found
