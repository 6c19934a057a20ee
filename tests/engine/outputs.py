"""All that comes for the sequences of requests, put together from deltas."""

from dataclasses import dataclass, field

from jaxinfer.engine.types import FinishReason, TokenDelta, TokenLogprobs


@dataclass
class Output:
    """All that came for one sequence."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    reason: FinishReason | None = None
    stopped_by: int | None = None
    cached: int = 0
    error: str | None = None
    accepted_prediction: int = 0
    rejected_prediction: int = 0

    def take(self, delta: TokenDelta) -> None:
        assert self.reason is None, "a sequence goes on after its end"
        self.tokens += delta.token_ids
        self.logprobs += delta.logprobs or []
        self.prompt_logprobs = delta.prompt_logprobs or self.prompt_logprobs
        self.reason, self.stopped_by = delta.finish_reason, delta.stop_token_id
        self.cached, self.error = delta.cached_tokens, delta.error
        self.accepted_prediction += delta.accepted_prediction
        self.rejected_prediction += delta.rejected_prediction


Outputs = dict[tuple[str, int], Output]
"""By the request's id and the sequence's index."""
