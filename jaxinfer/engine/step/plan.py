"""StepPlan: one step, as the scheduler hands it to a runner. Plain numbers, so that it can cross a wire."""

import enum
from typing import NamedTuple

import numpy as np

from jaxinfer.engine.step.slot_init import SlotInit


class StepKind(enum.StrEnum):
    """Kind of a step. DECODE: one token a row, which the device holds. MULTI_STEP: up to as many tokens a row as its
    plan says, one after another, in one dispatch. SPECULATE: as many, of which all but the first are drafted. MIXED:
    anything else.
    """

    DECODE = "decode"
    MIXED = "mixed"
    MULTI_STEP = "multi_step"
    SPECULATE = "speculate"


MULTI_TOKEN = (StepKind.MULTI_STEP, StepKind.SPECULATE)
"""Steps by which a row may get several tokens."""


class StepPlan(NamedTuple):
    """Rows of one step, of all shards: a row belongs to its slot's. Rows [:num_decode] compute one token, which the
    device already holds.

    slots, epochs, starts, counts, scored, samples: int arrays, one entry a row. starts are first positions, or more
    than that for a row that a step before gives fewer tokens than it might: the device knows better. counts are tokens
    that the host knows of; scored is how many of a row's last positions are scored. samples is the most tokens that the
    row samples: 0 or 1, or in a step of MULTI_TOKEN as many as it may get before a stop id.
    unread: int32, an entry a row: how many of its last tokens a draft model has not read, at most; the newest is one.
    tokens: int32, the tokens of rows [num_decode:], one after another.
    targets: int32, an entry a scored position of rows [num_decode:]: the token whose log-probability
    is asked for, or -1 for a draw.
    block_updates: a KV group, int32 [n, 3]: (slot, index in the block table, block).
    copies: a KV group, int32 [n, 3]: (shard, source, destination), blocks copied before anything is written.
    logprobs: whether any row wants log-probabilities.
    needs: with several stages the last step by which a row of this one has drawn its newest token, which must have come
    back to the first stage; -1 for none. drawn: with several stages int32, an entry a row: 1 where a step has drawn its
    newest token since its sequence got the slot; None with one.
    """

    kind: StepKind
    index: int
    admissions: tuple[SlotInit, ...]
    slots: np.ndarray
    epochs: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    scored: np.ndarray
    samples: np.ndarray
    unread: np.ndarray
    num_decode: int
    tokens: np.ndarray
    targets: np.ndarray
    block_updates: tuple[np.ndarray, ...]
    copies: tuple[np.ndarray, ...]
    logprobs: bool
    needs: int = -1
    drawn: np.ndarray | None = None

    @property
    def num_rows(self) -> int:
        return len(self.slots)

    @property
    def num_tokens(self) -> int:
        return self.num_decode + len(self.tokens)

    @property
    def num_scored(self) -> int:
        return self.num_decode + len(self.targets)

    @property
    def last_scored(self) -> np.ndarray:
        """The last scored position of each row, int [rows]."""
        return np.cumsum(self.scored) - 1


class LogprobArrays(NamedTuple):
    """Log-probabilities of scored positions, in the plan's order: S positions, MAX_LOGPROBS wide; of a step that drafts
    an axis of rows and one of their tokens instead of S."""

    logprobs: np.ndarray
    """float32 [S], of the drawn token or the target."""
    ranks: np.ndarray
    """int32 [S], 1 for the most likely token."""
    top_ids: np.ndarray
    """int32 [S, MAX_LOGPROBS], most likely first."""
    top_logprobs: np.ndarray
    """float32 [S, MAX_LOGPROBS]."""


class StepResult(NamedTuple):
    """Tokens that the rows of a plan have sampled.

    tokens: int32 [rows, Q]; of row i the first counts[i] mean something. counts: int32 [rows], at most the plan's
    `samples`: fewer if a stop id, the last of them, ended the row, if logits were not finite, or if the row goes on
    with fewer than its plan allowed; at least 1 if the row samples and is `finite`, bool [rows].
    drafted, accepted: int32 [rows], drafts, and the drafts that are among the tokens; None if nothing is drafted.
    predicted: int32 [rows], 1 if a row's drafts come from its prediction; None if nothing is drafted.
    """

    tokens: np.ndarray
    counts: np.ndarray
    finite: np.ndarray
    logprobs: LogprobArrays | None = None
    drafted: np.ndarray | None = None
    accepted: np.ndarray | None = None
    predicted: np.ndarray | None = None
