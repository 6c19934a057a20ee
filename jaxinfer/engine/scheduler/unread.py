"""UnreadTokens: what a draft model has not read of sequences, though the model has.

It shares the blocks of the model that it drafts for, and reads prompts with it only where that may pay. What a sequence
takes of others' prompts, out of the prefix cache or as a fork, is then unread for it, too.
"""

import numpy as np

from jaxinfer.engine.sequence import Sequence
from jaxinfer.engine.slot_table import SlotTable
from jaxinfer.engine.step.buckets import bucket_of, make_buckets
from jaxinfer.engine.step.catch_up import READ_AGAIN, reach
from jaxinfer.engine.step.plan import StepKind, StepPlan
from jaxinfer.engine.step.shapes import EngineShapes, followed_group


class UnreadTokens:
    """Marks, one a block of each shard, in the KV group that a draft model follows."""

    def __init__(self, shapes: EngineShapes, table: SlotTable):
        self._table = table
        self._size = shapes.block_size
        self._group = followed_group(shapes.groups)
        self._rows = make_buckets(shapes).rows
        self._marks = np.zeros((shapes.shards, shapes.groups[self._group].num_blocks), bool)

    def can_draft(self, slots: np.ndarray) -> np.ndarray | None:
        """Rows of a step that can have drafts, bool: those whose prompts were read, or are as the row begins to draft.
        None: all."""
        table, unread = self._table, self._table.unread[slots]
        near = unread <= self._reach(len(slots))
        if near.all():
            return None
        able = near | (table.total[slots] - unread >= table.prompt_len[slots] - 1)
        return None if able.all() else able

    def note(self, plan: StepPlan) -> None:
        """A plan that is dispatched."""
        if plan.kind is StepKind.MIXED:
            for row in range(plan.num_decode, plan.num_rows):
                start = int(plan.starts[row])
                self._mark(int(plan.slots[row]), start, start + int(plan.counts[row]), not plan.followed)
        elif plan.kind is StepKind.SPECULATE:
            most = self._reach(plan.num_rows)
            for row in np.flatnonzero((plan.unread > READ_AGAIN) & (plan.samples > 1)).tolist():
                end = int(plan.starts[row]) + 1
                self._mark(int(plan.slots[row]), max(end - min(int(plan.unread[row]), most), 0), end, False)

    def of_blocks(self, sequence: Sequence, computed: int) -> int:
        """How many of the first `computed` tokens of a sequence, which has blocks of them, are unread: from the first
        one on."""
        blocks = sequence.kv.blocks[self._group][: -(-computed // self._size)]
        marks = self._marks[sequence.kv.shard, blocks]
        return computed - int(marks.argmax()) * self._size if marks.any() else 0

    def _mark(self, slot: int, first: int, end: int, unread: bool) -> None:
        """Blocks of a slot's tokens from `first` to before `end`. One that was begun before keeps a mark."""
        sequence = self._table.sequences[slot]
        assert sequence is not None
        begun = first // self._size if unread else -(-first // self._size)
        blocks = sequence.kv.blocks[self._group][begun : -(-end // self._size)]
        self._marks[sequence.kv.shard, blocks] = unread

    def _reach(self, rows: int) -> int:
        """As `reach`, in the program of so many rows of all shards."""
        return reach(bucket_of(min(rows, self._rows[-1]), self._rows))
