"""SlotInit: what a sequence that gets a slot brings to the device, and the table of its scalars."""

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from jaxinfer.sampling import SamplingParams, columns

_WORD = 0xFFFFFFFF
_NO_TOKENS = np.zeros(0, np.int32)


class SlotInit(NamedTuple):
    """A sequence that gets a slot: everything that `admit` writes there.

    length: position of last_token, the newest known token. remaining: tokens it may still make.
    blocks: its block table so far, a list a KV group.
    counts: (token ids, packed counts) where a penalty needs them: times generated, and SEEN_IN_PROMPT.
    constrained: whether it may draw only what its slot's mask allows. tokens: int32, all that it has, where drafts are
    made from them. prediction: int32, what the last places of its row of history hold (`prediction_places`).
    """

    slot: int
    length: int
    last_token: int
    prompt_len: int
    remaining: int
    seed: int
    sequence_index: int
    params: SamplingParams
    stop_ids: tuple[int, ...]
    blocks: tuple[list[int], ...]
    counts: tuple[np.ndarray, np.ndarray] | None
    constrained: bool = False
    tokens: np.ndarray | None = None
    prediction: np.ndarray = _NO_TOKENS

    def history(self, end: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield the contents of the slot's row of history, (slot, position of the first, tokens) each: its own tokens,
        and its prediction, which ends at `end`."""
        if self.tokens is not None:
            yield self.slot, 0, self.tokens
            free = min(len(self.prediction), end - len(self.tokens))  # its own tokens may have reached the prediction
            yield self.slot, end - free, self.prediction[len(self.prediction) - free :]


SEEN_IN_PROMPT = 1 << 14
"""Bit of a packed count: the token is in the prompt. The bits below count how often it was generated."""
MAX_COUNT = SEEN_IN_PROMPT - 1


class SlotScalar(NamedTuple):
    """A number of each slot. value: a sequence's. dtype: as which the device reads it. neutral: that of a free slot."""

    value: Callable[[SlotInit], int | float]
    dtype: str = "int32"
    neutral: int | float = 0


NEWEST_SCALARS = {name: SlotScalar(attrgetter(name)) for name in ("length", "last_token", "remaining")}
"""Scalars that every drawn token changes, by name, in the order of `layouts.NEWEST`."""

PARAM_SCALARS = {
    "prompt_len": SlotScalar(attrgetter("prompt_len")),
    "seed_low": SlotScalar(lambda init: init.seed & _WORD, "uint32"),
    "seed_high": SlotScalar(lambda init: init.seed >> 32 & _WORD, "uint32"),
    "sequence_index": SlotScalar(attrgetter("sequence_index")),
    "uses_counts": SlotScalar(attrgetter("params.uses_counts")),
    "constrained": SlotScalar(attrgetter("constrained")),
    "predicted": SlotScalar(lambda init: len(init.prediction)),
    "wants_logprobs": SlotScalar(lambda init: init.params.logprobs is not None),
    **{name: SlotScalar(attrgetter(f"params.{name}"), *column) for name, column in columns().items()},
}
"""Scalars that stay as `admit` wrote them, by name, in the order of `layouts.SLOT_PARAMS`."""
