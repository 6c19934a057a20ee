"""StepPlan: one step, as the scheduler hands it to a runner. Plain numbers, so that it can cross a wire."""

from typing import NamedTuple

import numpy as np

from jaxinfer.sampling import SamplingParams


class SlotInit(NamedTuple):
    """A request that gets a slot: everything that `admit` writes there.

    length: position of last_token, the newest known token. remaining: tokens it may still make.
    pages: its page table so far, a list a KV group.
    counts: (token ids, packed counts) where a penalty needs them: times generated, and SEEN_IN_PROMPT.
    """

    slot: int
    length: int
    last_token: int
    prompt_len: int
    remaining: int
    seed: int
    choice: int
    params: SamplingParams
    stop_ids: tuple[int, ...]
    pages: tuple[list[int], ...]
    counts: tuple[np.ndarray, np.ndarray] | None


SEEN_IN_PROMPT = 1 << 14
"""Bit of a packed count: the token is in the prompt. The bits below count how often it was generated."""
MAX_COUNT = SEEN_IN_PROMPT - 1


class StepPlan(NamedTuple):
    """Rows of one step. Rows [:num_decode] compute one token, which the device already holds.

    slots, serials, starts, counts, scored: int arrays, one entry a row. starts are first positions;
    scored is how many of a row's last positions are scored. draws: bool, whether the last scored
    position draws a token.
    tokens: int32, the tokens of rows [num_decode:], one after another.
    targets: int32, an entry a scored position of rows [num_decode:]: the token whose log-probability
    is asked for, or -1 for a draw.
    page_updates: a KV group, int32 [n, 3]: (slot, index in the page table, page).
    copies: a KV group, int32 [n, 2]: (source, destination) pages, copied before anything is written.
    logprobs: whether any row wants log-probabilities.
    burst: every row decodes `counts` tokens, one after another, and draws after each; it ends sooner at a stop id.
    """

    index: int
    admissions: tuple[SlotInit, ...]
    slots: np.ndarray
    serials: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    scored: np.ndarray
    draws: np.ndarray
    num_decode: int
    tokens: np.ndarray
    targets: np.ndarray
    page_updates: tuple[np.ndarray, ...]
    copies: tuple[np.ndarray, ...]
    logprobs: bool
    burst: bool = False

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
    def decode_only(self) -> bool:
        return self.num_rows == self.num_decode


class LogprobArrays(NamedTuple):
    """Log-probabilities of scored positions, in the plan's order: S positions, MAX_LOGPROBS wide."""

    logprobs: np.ndarray
    """float32 [S], of the drawn token or the target."""
    ranks: np.ndarray
    """int32 [S], 1 for the most likely token."""
    top_ids: np.ndarray
    """int32 [S, MAX_LOGPROBS], most likely first."""
    top_logprobs: np.ndarray
    """float32 [S, MAX_LOGPROBS]."""


class StepResult(NamedTuple):
    """What a step made. tokens: int32 [S], drawn ids in the plan's order; -1 where logits were not finite.

    Of a burst, `counts` tokens a row; what stands behind a stop id or a -1 means nothing.
    """

    tokens: np.ndarray
    logprobs: LogprobArrays | None
