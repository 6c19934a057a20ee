"""Requests and outputs that cross the seam between an engine and its clients. Plain data, no jax."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from jaxinfer.sampling import SamplingParams

MAX_PRIORITY = 2**31 - 1
"""A request's priority is at most this, either way."""


NO_PREDICTIONS = 'needs an engine that drafts by n-grams: --speculative-config \'{"method": "ngram"}\' turns it on'
"""Why an engine refuses a prediction."""


class FinishReason(enum.StrEnum):
    """Why a sequence ended; the values are OpenAI's, and three of our own. TIMEOUT: it got no slot in time."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    TIMEOUT = "timeout"


@dataclass(frozen=True)
class GenerateRequest:
    """One prompt to continue. `sampling.n` sequences come back, numbered from 0.

    prompt_token_ids: int32 [n], or a sequence, which is copied when the request is checked.
    priority: lower runs first. cache_salt: prefixes are shared only between requests of one salt. tenant: whose it is,
    for fair sharing: digests of the API key and of the user. prediction: token ids that the output may be, which steps
    draft from; they change no token. Empty: none. max_wait: seconds for which it may wait for its first slot; None: any
    time. max_expected_wait: seconds; a request that is likely to wait longer is refused at once. None: none is.
    """

    request_id: str
    prompt_token_ids: np.ndarray | Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    cache_salt: str = ""
    tenant: tuple[str, ...] = ()
    prediction: np.ndarray | Sequence[int] = ()
    max_wait: float | None = None
    max_expected_wait: float | None = None


class TokenLogprobs(NamedTuple):
    """Log-probabilities at one position, natural logarithm, of the model's raw distribution.

    rank is 1 for the most likely token. top is sorted from the most likely, `logprobs` entries.
    """

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


class RequestTimes(NamedTuple):
    """Seconds that a request waited and computed before its first token.

    queue: from when it was queued until it first got a slot. prefill: from then until sequence 0's first token was read
    from the device, preemptions included.
    """

    queue: float
    prefill: float


class TokenDelta(NamedTuple):
    """Output that one engine step adds to one sequence of a request.

    finish_reason is set on a sequence's last delta. stop_token_id is the stop id that ended it, or None. cached_tokens
    counts prompt tokens whose KV was reused. prompt_logprobs comes once, with sequence 0's first tokens, as times does;
    its first entry is None. error says what failed if finish_reason is `error`; param: the request's field that caused
    it, or None. sequence_id: names the sequence in every later StepOutput; -1 if it ended before its first token.
    preemptions: how often the sequence lost its slot to another, with its last delta. accepted_prediction,
    rejected_prediction: drafts from the prediction that the step kept and dropped.
    """

    request_id: str
    index: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    error: str | None = None
    times: RequestTimes | None = None
    sequence_id: int = -1
    preemptions: int = 0
    param: str | None = None
    accepted_prediction: int = 0
    rejected_prediction: int = 0


class StepOutput(NamedTuple):
    """Output that one engine step adds to all sequences.

    Most sequences gain tokens and nothing else: sequence_ids int64 [n], counts int32 [n] and tokens int32 [sum of
    counts], a sequence's tokens side by side. A sequence that begins, ends, or reports more than tokens is in `deltas`
    instead, so that the first delta of each contains its id.
    """

    sequence_ids: np.ndarray
    counts: np.ndarray
    tokens: np.ndarray
    deltas: list[TokenDelta]

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return len(self.tokens) + sum(len(delta.token_ids) for delta in self.deltas)


def output_of(deltas: list[TokenDelta]) -> StepOutput:
    """Return an output that consists of deltas alone."""
    return StepOutput(_NO_IDS, _NO_TOKENS, _NO_TOKENS, deltas)


_NO_IDS, _NO_TOKENS = np.zeros(0, np.int64), np.zeros(0, np.int32)


class ModelInfo(NamedTuple):
    """Facts about the served model that the API side needs.

    max_num_seqs, num_blocks: those of all shards; each has a scratch block. shards: EngineShapes.shards. mesh: its axes
    and their sizes. takes_predictions: whether steps draft from a request's prediction.
    """

    name: str
    max_model_len: int
    vocab_size: int
    max_num_seqs: int
    block_size: int
    num_blocks: int
    attention_backend: str = "xla"
    scheduling_policy: str = "fcfs"
    kv_cache_dtype: str = "auto"
    dtype: str = "float32"
    weights: str = "float32"
    shards: int = 1
    mesh: str = "one device"
    takes_predictions: bool = False
