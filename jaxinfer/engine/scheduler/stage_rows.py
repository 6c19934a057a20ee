"""StageRows: which decode rows a step takes where layers are stages of a pipeline.

A row draws its next token once the last one is back at the first stage, as many steps later as there are stages. So a
step takes a share of the rows, and as many steps as there are stages take them all: every stage always has rows.
Prompts are cut so that steps take about as long as each other: a stage that is done sooner waits for the one before it
(gLLM, arXiv:2504.14775, throttles both likewise).
"""

from collections.abc import Callable

import numpy as np

from jaxinfer.engine.scheduler.state import SchedulerState

_ROUNDS = 8
"""Rounds over which prompts are spread among decoding rows; a round is as many steps as there are stages
(benchmarks/README.md, "Stages of a pipeline")."""
LEAST_PROMPT_TOKENS = 64
"""Fewest prompt tokens of a step, if prompts have as many left: fewer cost as much."""


class StageRows:
    """Rows of the steps of a pipeline of several stages."""

    def __init__(self, state: SchedulerState):
        self._state = state
        self._stages = state.shapes.stages

    def due(self, slots: np.ndarray, step: int) -> np.ndarray:
        """Return the decoding slots that this step takes: an equal share of each shard's, the longest waiting first,
        and none that still waits for its token."""
        drawn_at = self._state.table.drawn_at[slots]
        order = np.argsort(drawn_at, kind="stable")
        order = order[drawn_at[order] <= step - self._stages]
        # Rounded so that a round of steps takes all of them.
        turn = step % self._stages
        return self._first(slots, order, lambda rows: rows * (turn + 1) // self._stages - rows * turn // self._stages)

    def next_due(self, slots: np.ndarray) -> np.ndarray:
        """Return the slots that draw next and have not been planned beyond that, if nothing else can be computed: their
        step waits on the device and not for the host."""
        table = self._state.table
        drawn_at, waiting = table.drawn_at[slots], table.total[slots] - table.known[slots]
        order = np.argsort(drawn_at, kind="stable")
        once = waiting[order] <= table.planned_tokens[slots][order]
        return self._first(slots, order[once], lambda rows: max(rows // self._stages, 1))

    def prompt_tokens(self) -> int:
        """Tokens of prompts that a step takes of each shard, at most: a part of what is left of prompts that have a
        slot, and of those that would get one now, so that what comes at once is spread over steps."""
        state = self._state
        table, queue, slots = state.table, state.queue, state.running_slots()
        pending = table.total[slots] - table.computed[slots]
        left = np.bincount(table.shards_of(slots), np.where(pending > 1, pending, 0), minlength=state.shapes.shards)
        tokens = int(left.max(initial=0))
        if len(queue):
            free = max(table.free_in(shard) for shard in range(state.shapes.shards))
            tokens += queue.num_tokens * min(free, len(queue)) // len(queue)
        decoding = bool((pending <= 1).any())
        return prompt_share(tokens, self._stages, state.shapes.max_num_batched_tokens, decoding=decoding)

    def _first(self, slots: np.ndarray, order: np.ndarray, share: Callable[[int], int]) -> np.ndarray:
        """Slots at the first of places `order`, of each shard `share` of how many of its slots there are; as they come
        in `slots`."""
        shards = self._state.table.shards_of(slots)
        kept = [
            order[shards[order] == shard][: share(int(np.count_nonzero(shards == shard)))]
            for shard in range(self._state.shapes.shards)
        ]
        return slots[np.sort(np.concatenate(kept))]


def prompt_share(tokens: int, stages: int, most: int, *, decoding: bool) -> int:
    """Tokens of prompts that a step takes where so many are left. most: of any step. decoding: beside rows that
    decode."""
    return min(max(-(-tokens // prompt_steps(stages, decoding=decoding)), LEAST_PROMPT_TOKENS), most)


def prompt_steps(stages: int, *, decoding: bool) -> int:
    """Steps over which prompts are spread."""
    return stages * (_ROUNDS if decoding else 1)
