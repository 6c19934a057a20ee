"""BlockAllocator: blocks for running sequences, by preemption where there are too few."""

import numpy as np

from jaxinfer.engine.scheduler.state import SchedulerState
from jaxinfer.engine.sequence import Sequence
from jaxinfer.engine.step.builder import PlanBuilder


class BlockAllocator:
    """Grows the block tables of running sequences, and queues the updates for the device."""

    def __init__(self, state: SchedulerState):
        self._state = state

    def grow(self, plan: PlanBuilder, sequence: Sequence, num_tokens: int) -> bool:
        """Blocks for `num_tokens` positions of a sequence. False where it must wait, or was itself preempted."""
        state, shard = self._state, sequence.kv.shard
        while not state.kv.grow(sequence.kv, num_tokens):
            if state.in_flight:
                state.must_drain = True
                return False
            if state.forks.drop_last_reference(shard=shard):
                continue
            victim = state.running_in(shard)[-1]
            if plan.has_row[victim.slot]:
                # It will be preempted when it asks for its own next block, or finish before.
                return False
            state.preempt(victim)
            if victim is sequence:
                return False
        self.send_new_blocks(plan, sequence)
        return True

    def grow_slot(self, plan: PlanBuilder, slot: int) -> bool:
        """A block for the next position of the sequence in a slot, where there still is one."""
        state = self._state
        sequence = state.table.sequences[slot]
        return (
            sequence is not None
            and not state.must_drain
            and self.grow(plan, sequence, int(state.table.computed[slot]) + 1)
        )

    def grow_each(self, plan: PlanBuilder, slots: np.ndarray) -> bool:
        """One block for each of `slots`; False, and no change, where there are too few."""
        table, size = self._state.table, self._state.shapes.block_size
        sequences = map(table.sequences.__getitem__, slots.tolist())
        blocks = self._state.kv.grow_each([sequence.kv for sequence in sequences if sequence is not None])
        if blocks is None:
            return False
        plan.add_block_each(slots, table.capacity[slots] // size, blocks)
        table.capacity[slots] += size
        return True

    def send_new_blocks(self, plan: PlanBuilder, sequence: Sequence) -> None:
        """Queues block-table updates for newly allocated blocks."""
        table, size, slot = self._state.table, self._state.shapes.block_size, sequence.slot
        first = int(table.capacity[slot]) // size
        if len(sequence.kv.blocks[0]) > first:
            plan.add_blocks(slot, first, [blocks[first:] for blocks in sequence.kv.blocks])
            table.capacity[slot] = len(sequence.kv.blocks[0]) * size

    def trim_windows(self) -> None:
        """Frees blocks that fell behind a window.

        By what was collected, not by what was dispatched: the tree is offered a block before it is dropped.
        """
        table, slots = self._state.table, self._state.running_slots()
        for slot in slots[table.collected[slots] >= table.next_trim[slots]].tolist():
            sequence = table.sequences[slot]
            assert sequence is not None
            table.next_trim[slot] = self._state.kv.trim(sequence.kv, int(table.collected[slot]))
