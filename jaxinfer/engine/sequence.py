"""Sequence: one continuation of a prompt, as the host knows it."""

import enum
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol

import numpy as np

from jaxinfer.engine.constraint import Matcher
from jaxinfer.engine.kv.manager import BlockRefs
from jaxinfer.engine.types import FinishReason, TokenLogprobs
from jaxinfer.sampling import SamplingParams


class TokenTable(Protocol):
    """Tokens of sequences with a slot: int32 [slots, max_model_len], of which the first `known` [slots] are valid."""

    tokens: np.ndarray
    known: np.ndarray


class Status(enum.Enum):
    """State of a sequence. DRAINING: its whole output is planned, but not all of it collected; it becomes RUNNING again
    if a step gives fewer tokens than were planned."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    DRAINING = enum.auto()
    FINISHED = enum.auto()


@dataclass(slots=True, eq=False)
class Sequence:
    """One of a request's `n` sequences. What changes every step, its tokens and lengths, lives in the SlotTable while
    it has a `slot`.

    waiting_tokens: int32, its known tokens while it has none; at first the prompt.
    limit: most tokens, prompt included.
    sequence_id: names the sequence in a StepOutput.
    kv: its blocks.
    queued_at, scheduled_at: nanoseconds; when it was queued, and when it first got a slot.
    rank: its place among all sequences (scheduler/policy.py); the last entry is `index`.
    fork_to: sequences that this one becomes once all of its prompt but the last token is computed.
    is_waiting_fork: True while it waits for a slot with blocks of its parent, computed up to `fork_computed`.
    failures: step faults that it was in since it came further than ever: `most_collected` is the most of its positions
        that were computed and collected when a step failed; `most_computed` also counts those that were not collected.
    isolated: True while it is, or is to be, the only sequence of a step (scheduler/fault_isolation.py).
    isolation_round, isolated_at: the last round of isolation that it was in, and its `most_collected` then.
    matcher: what it may say; None: anything.
    prediction: int32, tokens that it may say, to draft from; empty: none.
    tenant: whose it is, for fair sharing. charged, charged_from: tokens that the tenant was charged when it was
        admitted first (scheduler/fair_order.py), and its positions that were computed then; 0 before.
    """

    request_id: str
    waiting_tokens: np.ndarray
    params: SamplingParams
    _: KW_ONLY
    limit: int
    seed: int
    stop_ids: frozenset[int]
    arrival: int
    kv: BlockRefs
    index: int = 0
    sequence_id: int = 0
    priority: int = 0
    tenant: tuple[str, ...] = ()
    prediction: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    fork_to: int = 1
    prompt_len: int = field(init=False)
    prompt_logprobs: list[TokenLogprobs | None] | None = field(init=False)
    status: Status = Status.WAITING
    slot: int = -1
    table: TokenTable | None = None
    rank: tuple[int, ...] = ()
    queued_at: int = 0
    scheduled_at: int | None = None
    was_admitted: bool = False
    cached_tokens: int = 0
    preemptions: int = 0
    charged: int = 0
    charged_from: int = 0
    is_waiting_fork: bool = False
    fork_computed: int = 0
    failures: int = 0
    most_collected: int = 0
    most_computed: int = 0
    isolated: bool = False
    isolation_round: int = 0
    isolated_at: int = 0
    finish_reason: FinishReason | None = None
    matcher: Matcher | None = None

    def __post_init__(self) -> None:
        self.prompt_len = len(self.waiting_tokens)
        self.prompt_logprobs = None if self.params.prompt_logprobs is None else [None]

    @property
    def tokens(self) -> np.ndarray:
        """The prompt and every confirmed output token, int32; a view of the table's row while it has a slot."""
        table = self.table
        return self.waiting_tokens if table is None else table.tokens[self.slot, : table.known[self.slot]]

    @property
    def num_known(self) -> int:
        return len(self.waiting_tokens) if self.table is None else int(self.table.known[self.slot])

    @property
    def num_outputs(self) -> int:
        return self.num_known - self.prompt_len

    @property
    def finished(self) -> bool:
        return self.status is Status.FINISHED

    @property
    def constraint_param(self) -> str | None:
        """The request's field that says what its text must be."""
        constraint = self.params.constraint
        return None if constraint is None else constraint.param

    @property
    def owes_prompt_logprobs(self) -> bool:
        """True while log-probabilities of the prompt are asked for and not all collected."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_len

    @property
    def is_parent(self) -> bool:
        """True until its sequences part: only its prompt but the last token is computed."""
        return self.fork_to > 1

    def count_failure(self, collected: int, computed: int) -> None:
        """Notes a failure of a step that computed it, when `collected` of its `computed` positions were done."""
        self.failures = 1 if collected > self.most_collected else self.failures + 1
        self.most_collected = max(self.most_collected, collected)
        self.most_computed = max(self.most_computed, computed)

    def child(self, index: int, kv: BlockRefs) -> "Sequence":
        """Sequence `index` of the same request, with blocks of its own."""
        child = Sequence(
            self.request_id,
            self.tokens.copy(),
            self.params,
            limit=self.limit,
            seed=self.seed,
            stop_ids=self.stop_ids,
            arrival=self.arrival,
            kv=kv,
            index=index,
            sequence_id=self.sequence_id + index,
            priority=self.priority,
            tenant=self.tenant,
            prediction=self.prediction,
            matcher=None if self.matcher is None else self.matcher.copy(),
        )
        child.queued_at, child.scheduled_at = self.queued_at, self.scheduled_at
        child.rank = (*self.rank[:-1], index)
        child.prompt_logprobs = None  # the prompt's are reported once, with sequence 0
        return child
