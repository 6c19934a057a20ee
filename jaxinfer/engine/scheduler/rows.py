"""Rows of a plan whose tokens come from the host: chunks of prompts, and sequences that resume."""

from typing import NamedTuple

from jaxinfer.config import SchedulerConfig
from jaxinfer.engine.scheduler.state import SchedulerState
from jaxinfer.engine.sequence import Sequence
from jaxinfer.engine.step.builder import PlanBuilder


class RowSize(NamedTuple):
    """Tokens of a row, and how many of them, the last ones, are scored."""

    tokens: int
    scored: int


class HostRows:
    """Decides how long such a row may be, and adds it to a plan.

    max_chunk: most tokens of a row.
    """

    def __init__(self, state: SchedulerState, config: SchedulerConfig):
        self._state = state
        self._split = config.enable_chunked_prefill
        self.max_chunk = config.long_prefill_token_threshold or state.shapes.max_num_batched_tokens

    def size(self, plan: PlanBuilder, sequence: Sequence, pending: int, room: int) -> RowSize:
        """Return how much of a sequence's `pending` tokens a row of at most `room` takes."""
        count = min(pending, room, self.max_chunk)
        if sequence.owes_prompt_logprobs:
            # Every position is scored: by its next token, or, at the prompt's end, by a sample.
            count = min(count, self._scored_left(plan, sequence.kv.shard))
            return RowSize(count, count)
        if count < pending and not self._split and not self._is_foreseen(sequence):
            return RowSize(0, 0)
        return RowSize(count, int(count == pending and not sequence.is_parent))

    def add(self, plan: PlanBuilder, sequence: Sequence, start: int, size: RowSize) -> None:
        """A row of a sequence that has a slot, from position `start` on."""
        end = start + size.tokens
        samples = end == self._state.table.total[sequence.slot] and not sequence.is_parent
        targets: list[int] = []
        if sequence.owes_prompt_logprobs:
            targets = sequence.tokens[start + 1 : end + 1].tolist()
        if samples:
            targets = [*targets[: size.scored - 1], -1]
        # NOTE: not `sequence.tokens`, which has none that are known and not confirmed (`SchedulerState.foresee`).
        tokens, held = self._state.table.tokens[sequence.slot, start:end], not self._is_foreseen(sequence)
        plan.add_chunk(sequence.slot, tokens, targets, samples=samples, held=held)

    def _is_foreseen(self, sequence: Sequence) -> bool:
        return sequence.slot >= 0 and bool(self._state.table.foreseen[sequence.slot])

    def _scored_left(self, plan: PlanBuilder, shard: int) -> int:
        """Scored positions for a prompt that could use them all for as long as it takes: every other row needs one."""
        state = self._state
        entering = min(state.table.free_in(shard), len(state.queue))
        rows = plan.has_row.reshape(state.shapes.shards, -1)[shard].sum()
        others = len(state.running_in(shard)) + entering - int(rows) - 1
        return plan.budgets[shard].scored - others
