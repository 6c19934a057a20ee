"""Prefill: rows of running sequences whose tokens come from the host: of prompts, recomputed ones, foreseen ones."""

import numpy as np

from jaxinfer.config import SchedulerConfig
from jaxinfer.engine.scheduler.admission import Admission
from jaxinfer.engine.scheduler.block_allocator import BlockAllocator
from jaxinfer.engine.scheduler.policy import Policy
from jaxinfer.engine.scheduler.rows import HostRows
from jaxinfer.engine.scheduler.state import SchedulerState
from jaxinfer.engine.sequence import Sequence
from jaxinfer.engine.step.builder import PlanBuilder


class Prefill:
    """Shares a plan's tokens among the prompts that are half computed."""

    def __init__(
        self,
        state: SchedulerState,
        policy: Policy,
        config: SchedulerConfig,
        *,
        rows: HostRows,
        blocks: BlockAllocator,
        admission: Admission,
    ):
        self._state = state
        self._rows = rows
        self._blocks = blocks
        self._admission = admission
        self._fair = config.max_num_partial_prefills is not None
        self._admits_better_first = policy.preempts and not self._fair

    def plan(self, plan: PlanBuilder) -> None:
        """Adds a chunk of each. Those of a shard share its tokens."""
        state, table, slots = self._state, self._state.table, self._state.running_slots()
        pending, foreseen = table.total[slots] - table.computed[slots], table.foreseen[slots]
        chunked = slots[(pending > 1) | ((pending == 1) & (~table.samples[slots] | foreseen))]
        if foreseen.any():  # these wait for no prompt
            chunked = chunked[np.argsort(~table.foreseen[chunked], kind="stable")]
        sharers = self._sharers(chunked)
        self._admission.num_partial = 0
        for slot in chunked.tolist():
            sequence, shard = table.sequences[slot], slot // table.shard_slots
            if sequence is not None and not state.must_drain:
                if self._admits_better_first:
                    self._admission.admit_waiting(plan, before=sequence)
                end = self._plan_chunk(plan, sequence, -(-plan.budgets[shard].tokens // sharers[shard]))
                is_partial = table.total[slot] - end > table.samples[slot] and not table.foreseen[slot]
                self._admission.num_partial += int(is_partial)
            sharers[shard] = max(1, sharers[shard] - 1)

    def _sharers(self, chunked: np.ndarray) -> list[int]:
        """Prompts that share the tokens of each shard, one that may enter among them."""
        shards = self._state.shapes.shards
        if not self._fair:
            return [1] * shards
        entering = int(self._admission.somebody_may_enter())
        counts = np.bincount(self._state.table.shards_of(chunked), minlength=shards)
        return [max(1, count + entering) for count in counts.tolist()]

    def _plan_chunk(self, plan: PlanBuilder, sequence: Sequence, room: int) -> int:
        """Adds a row of at most `room` tokens; returns how many positions are computed after it."""
        table, slot = self._state.table, sequence.slot
        start = int(table.computed[slot])
        size = self._rows.size(plan, sequence, int(table.total[slot]) - start, room)
        if not size.tokens or not self._blocks.grow(plan, sequence, start + size.tokens):
            return start
        self._rows.add(plan, sequence, start, size)
        return start + size.tokens
