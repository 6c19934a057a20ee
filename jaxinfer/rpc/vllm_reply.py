"""Conversion of the engine's output to VllmEngine's messages."""

from collections.abc import Iterator, Sequence

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from jaxinfer.engine.types import FinishReason, TokenLogprobs
from jaxinfer.serving.generation import Generation
from jaxinfer.text import ChoiceDelta


class VllmReply:
    """A chunk for what a choice gains and, at its end, a `complete`; or only that one with everything.

    As in vLLM's own service, a stream's `complete` repeats the last chunk's tokens; its count is of all of them.
    prompt_only: no token is shown; the reply is `whole`, with what was asked about the prompt.
    """

    def __init__(self, generation: Generation, *, prompt_only: bool = False):
        self._generation = generation
        self._prompt_only = prompt_only
        (request,) = generation.requests
        self._params = request.sampling
        self._prompt_tokens = len(request.prompt_token_ids)
        choices = range(self._params.n)
        self._tokens: list[list[int]] = [[] for _ in choices]
        self._logprobs: list[list[TokenLogprobs]] = [[] for _ in choices]
        self._ends: dict[int, ChoiceDelta] = {}
        self._begun: set[int] = set()

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> Iterator[pb.GenerateResponse]:
        """Yield a stream's messages for a step."""
        for delta in deltas:
            self._tokens[delta.index] += delta.token_ids
            yield pb.GenerateResponse(chunk=self._chunk(delta))
            if delta.finish_reason is not None:
                logprobs = self._output_logprobs(delta.logprobs)
                yield pb.GenerateResponse(complete=self._complete(delta, delta.token_ids, logprobs))

    def keep(self, deltas: Sequence[ChoiceDelta]) -> None:
        """Keeps a step for `whole`."""
        for delta in map(_without_tokens, deltas) if self._prompt_only else deltas:
            self._tokens[delta.index] += delta.token_ids
            self._logprobs[delta.index] += delta.logprobs or ()
            if delta.finish_reason is not None:
                self._ends[delta.index] = delta

    def whole(self) -> list[pb.GenerateResponse]:
        """All choices, once the last has ended."""
        return [pb.GenerateResponse(complete=self._whole(index)) for index in sorted(self._ends)]

    def _whole(self, index: int) -> pb.GenerateComplete:
        logprobs = self._output_logprobs(self._logprobs[index])
        complete = self._complete(self._ends[index], self._tokens[index], logprobs)
        complete.MergeFrom(pb.GenerateComplete(input_logprobs=self._input_logprobs()))
        return complete

    def _chunk(self, delta: ChoiceDelta) -> pb.GenerateStreamChunk:
        first = delta.index not in self._begun
        self._begun.add(delta.index)
        return pb.GenerateStreamChunk(
            token_ids=delta.token_ids,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=len(delta.token_ids),
            cached_tokens=self._cached_tokens(),
            output_logprobs=self._output_logprobs(delta.logprobs),
            input_logprobs=self._input_logprobs() if first else None,
            index=delta.index,
        )

    def _complete(
        self, end: ChoiceDelta, tokens: Sequence[int], logprobs: pb.OutputLogProbs | None
    ) -> pb.GenerateComplete:
        reason = end.stop_reason
        return pb.GenerateComplete(
            output_ids=tokens,
            finish_reason=(end.finish_reason or FinishReason.STOP).value,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=len(self._tokens[end.index]),
            cached_tokens=self._cached_tokens(),
            output_logprobs=logprobs,
            index=end.index,
            matched_token_id=reason if isinstance(reason, int) else None,
            matched_stop_str=reason if isinstance(reason, str) else None,
        )

    def _cached_tokens(self) -> int:
        return self._generation.usage().prompt_tokens_details.cached_tokens

    def _output_logprobs(self, entries: Sequence[TokenLogprobs] | None) -> pb.OutputLogProbs | None:
        if not entries:
            return None
        return pb.OutputLogProbs(
            token_logprobs=[entry.logprob for entry in entries],
            token_ids=[entry.token_id for entry in entries],
            top_logprobs=[_top(entry) for entry in entries] if self._params.logprobs else [],
        )

    def _input_logprobs(self) -> pb.InputLogProbs | None:
        entries = self._generation.prompt_logprobs(0)
        if entries is None:
            return None
        values = [None if entry is None else entry.logprob for entry in entries]
        return pb.InputLogProbs(
            token_logprobs=[pb.InputTokenLogProb(value=value) for value in values],
            token_ids=self._generation.prompt_token_ids(0),
            top_logprobs=[_top(entry) for entry in entries] if self._params.prompt_logprobs else [],
        )


def _without_tokens(delta: ChoiceDelta) -> ChoiceDelta:
    ends = None if delta.finish_reason is None else FinishReason.LENGTH
    return delta._replace(token_ids=(), logprobs=None, finish_reason=ends, stop_reason=None)


def _top(entry: TokenLogprobs | None) -> pb.TopLogProbs:
    top = [] if entry is None else entry.top
    return pb.TopLogProbs(values=[value for _, value in top], token_ids=[token for token, _ in top])
