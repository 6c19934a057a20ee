"""Requests, outputs and statistics that cross the seam between an engine and its clients. Plain data, no jax."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from jaxinfer.sampling import SamplingParams

STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Edges of the histogram of tokens a step, vLLM's."""

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


class EngineStats(NamedTuple):
    """A reading of the engine's gauges and running totals (counted since start). All are numbers, or tuples of them."""

    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    preemptions: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Prompt tokens found there."""
    admitted_tokens: int = 0
    """Prompt tokens of requests that have got a slot."""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    steps: int = 0
    compiles_after_ready: int = 0
    step_faults: int = 0
    """Failures of the runner in a step, after each of which its requests were queued again or ended."""
    abandoned_requests: int = 0
    """Requests ended because the process that they came by had gone."""
    constraint_failures: int = 0
    """Sequences that a grammar or a rule ended with an error in the midst of their text."""
    forced_tokens: int = 0
    """Tokens that no step drew, since a grammar forced them (fast_forward.py)."""
    mask_wait_seconds: float = 0.0
    """Seconds of wait_seconds and apply_seconds for steps whose tokens had to be known before masks could be filled."""
    grammars_cached: int = 0
    grammars_compiled: int = 0
    grammars_refused: int = 0
    grammar_seconds: float = 0.0
    grammars_kept: int = 0
    grammar_bytes: int = 0
    """Fields from `grammars_cached` on are those of ConstraintStats (constraint.py)."""
    expected_wait: float = 0.0
    """Seconds until a request gets a slot that comes after all that wait, by how often slots came lately."""
    waiting_for_slots: int = 0
    waiting_for_blocks: int = 0
    waiting_for_prefills: int = 0
    waiting_for_step: int = 0
    """Waiting requests by reason (stats.py)."""
    schedule_seconds: float = 0.0
    dispatch_seconds: float = 0.0
    constrain_seconds: float = 0.0
    wait_seconds: float = 0.0
    apply_seconds: float = 0.0
    other_seconds: float = 0.0
    idle_seconds: float = 0.0
    """Seconds of the engine's thread by what it did (step_timer.py)."""
    in_flight_seconds: float = 0.0
    """Seconds with at least one step dispatched and not read."""
    starved_seconds: float = 0.0
    """Seconds with no step in flight, though there was something to do."""
    decode_steps: int = 0
    mixed_steps: int = 0
    multi_step_steps: int = 0
    speculate_steps: int = 0
    drafts: int = 0
    """Rows with drafts, a step each."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    """Drafts among `draft_tokens` that were kept."""
    accepted_at: tuple[int, ...] = ()
    """Kept drafts by their place among a row's drafts; empty if nothing is drafted."""
    decode_tokens: int = 0
    """Tokens computed in rows whose one pending token the device held."""
    prefill_tokens: int = 0
    """Tokens computed that came from the host: of prompts, and of what is computed again after a preemption."""
    padded_tokens: int = 0
    """Tokens that programs computed for nobody, since their sizes are few."""
    flops: float = 0.0
    bytes: float = 0.0
    """Operations and bytes of memory that the steps needed, by a model of the step (step_cost.py). In time they
    outgrow 64 bits."""
    iteration_tokens: int = 0
    """Prompt tokens computed and tokens generated, in all steps; what `step_tokens` counts."""
    step_tokens: tuple[int, ...] = (0,) * (len(STEP_TOKENS) + 1)
    """Steps by their number of tokens: up to each edge of STEP_TOKENS, and above."""
    expert_tokens: tuple[int, ...] = ()
    """Tokens that each expert has got, all layers with experts together; padding is not counted."""
    expert_imbalance: tuple[float, ...] = ()
    """Tokens of the busiest expert over those of the mean expert, for each layer with experts."""
    expert_device_imbalance: tuple[float, ...] = ()
    """Tokens of the busiest device over those of the mean device, for each layer with experts, since experts were last
    placed; empty if one device has all experts."""
    expert_placements: int = 0
    """Rearrangements of experts over devices by their load."""
    memory_used: tuple[int, ...] = ()
    memory_peak: tuple[int, ...] = ()
    memory_limit: tuple[int, ...] = ()
    """Bytes of each device; 0 where the platform does not tell."""
    host_devices: tuple[int, ...] = ()
    host_calls_behind: tuple[int, ...] = ()
    host_step_skew: tuple[float, ...] = ()
    host_heartbeat_age: tuple[float, ...] = ()
    """Fields of `HostReading`, an entry for each of several hosts; empty for one host."""


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
