"""Decode: rows whose one pending token the device holds, for one token or for several in one dispatch."""

from typing import NamedTuple

import numpy as np

from jaxinfer.engine.scheduler.block_allocator import BlockAllocator
from jaxinfer.engine.scheduler.stage_rows import StageRows
from jaxinfer.engine.scheduler.state import SchedulerState
from jaxinfer.engine.step.buckets import make_buckets
from jaxinfer.engine.step.builder import PlanBuilder
from jaxinfer.engine.step.plan import StepKind


class MultiTokenRows(NamedTuple):
    """Rows that may get several tokens in one dispatch; int32, an entry a row: slots, the most tokens, and blocks that
    they need for these."""

    slots: np.ndarray
    counts: np.ndarray
    blocks: np.ndarray


class Decode:
    """Adds decode rows to a plan, and the blocks that they need."""

    def __init__(self, state: SchedulerState, blocks: BlockAllocator, *, splits_prompts: bool):
        self._state = state
        self._blocks = blocks
        self._most_checked = max(make_buckets(state.shapes).checked, default=0)
        self._stage_rows = StageRows(state) if state.shapes.stages > 1 else None
        self._splits_prompts = splits_prompts

    def plan(self, plan: PlanBuilder, step: int) -> bool:
        """Adds every row that is ready, or of several stages those that are due; True where all running sequences
        decode. step: the plan's index."""
        decode, everyone = self._ready()
        if self._stage_rows is not None:
            decode = self._stage_rows.due(decode, step)
        self._add(plan, decode)
        if self._stage_rows is not None and self._splits_prompts:
            plan.limit_prompts(self._stage_rows.prompt_tokens())
        return everyone

    def plan_ahead(self, plan: PlanBuilder) -> None:
        """Add rows to an empty plan of several stages: they are due as soon as the token that they wait for is
        drawn."""
        if self._stage_rows is not None and not self._state.must_drain:
            self._add(plan, self._stage_rows.next_due(self._ready()[0]))

    def _ready(self) -> tuple[np.ndarray, bool]:
        """Slots of rows that decode, and whether those are all running sequences."""
        table, slots = self._state.table, self._state.running_slots()
        ready = (table.total[slots] - table.computed[slots] == 1) & table.samples[slots]
        if table.num_constrained:
            ready &= ~table.foreseen[slots]
        everyone = bool(ready.all())
        return slots if everyone else slots[ready], everyone

    def _add(self, plan: PlanBuilder, decode: np.ndarray) -> None:
        """Rows of slots that have blocks for one more token, or get them."""
        table = self._state.table
        full = decode[table.computed[decode] >= table.capacity[decode]]
        if len(full) and not self._blocks.grow_each(plan, full):
            waiting = [slot for slot in full.tolist() if not self._blocks.grow_slot(plan, slot)]
            preempted = [slot for slot in decode.tolist() if table.sequences[slot] is None]
            decode = decode[~np.isin(decode, waiting + preempted)]
        plan.add_decode(decode)

    def may_take_several(self, slots: np.ndarray) -> bool:
        """Return whether these slots may get several tokens in one dispatch. Without drafting they may not if one is
        constrained or reports log-probabilities; with drafting they may not if too many would draft under masks, or one
        is not to draft."""
        table = self._state.table
        constrained = table.num_constrained and table.constrained[slots].any()
        if self._state.shapes.drafting is None:
            return not constrained and not table.logprobs[slots].any()
        if not constrained:
            return True
        return not table.plain_next[slots].any() and np.bincount(table.shards_of(slots)).max() <= self._most_checked

    def multi_token_slots(self, step: int) -> np.ndarray:
        """Return the slots that decide whether rows of a step may get several tokens: all that run, or with several
        stages those that are due, or else come next. step: the plan's index."""
        slots = self._state.running_slots()
        if self._state.shapes.row_tokens == 1 or self._state.must_drain:
            return slots[:0]
        if self._stage_rows is None or not len(slots):
            return slots
        due = self._stage_rows.due(slots, step)
        return due if len(due) else self._stage_rows.next_due(slots)

    def multi_token(self, slots: np.ndarray, most: int) -> MultiTokenRows | None:
        """Plan at most `most` tokens for each of these slots; None if a single step must be planned.

        A single step is needed if a row has a prompt to compute, if nobody has more than one token left, or if blocks
        are too few: then the next step evicts, preempts or waits.
        """
        state = self._state
        if most < 2 or not self._ready()[1]:
            return None
        table, size = state.table, state.shapes.block_size
        computed, total = table.computed[slots], table.total[slots]
        counts = np.minimum(most, table.limit[slots] - total)
        blocks = np.maximum(-(-(computed + counts) // size) - table.capacity[slots] // size, 0)
        if counts.max() < 2 or not self._has_blocks(slots, blocks):
            return None
        return MultiTokenRows(slots, counts, blocks)

    def _has_blocks(self, slots: np.ndarray, blocks: np.ndarray) -> bool:
        """Return whether each shard has as many blocks as its slots need."""
        if len(self._state.kv_shards) == 1:
            return int(blocks.sum()) <= self._state.kv_shards[0].available()
        shards = self._state.table.shards_of(slots)
        needed = np.bincount(shards, blocks, minlength=len(self._state.kv_shards))
        return all(count <= kv.available() for count, kv in zip(needed, self._state.kv_shards, strict=True))

    def plan_multi_token(self, plan: PlanBuilder, rows: MultiTokenRows) -> None:
        """Adds its rows, and the blocks that they need."""
        table, (slots, counts, blocks) = self._state.table, rows
        one = slots[blocks == 1]
        grown = not len(one) or self._blocks.grow_each(plan, one)
        for row in np.flatnonzero(blocks > 1).tolist():
            sequence = table.sequences[slots[row]]
            assert sequence is not None
            grown = grown and self._state.kv.grow(sequence.kv, int(table.computed[slots[row]] + counts[row]))
            self._blocks.send_new_blocks(plan, sequence)
        if not grown:
            raise RuntimeError("blocks that were available are not")
        kind = StepKind.MULTI_STEP if self._state.shapes.drafting is None else StepKind.SPECULATE
        plan.add_multi_token(kind, slots, counts)
