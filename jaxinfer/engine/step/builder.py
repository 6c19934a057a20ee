"""PlanBuilder: collects the rows and block changes of one step."""

from collections.abc import Sequence

import numpy as np

from jaxinfer.engine.slot_table import SlotTable
from jaxinfer.engine.step.plan import StepKind, StepPlan
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.engine.step.slot_init import SlotInit

_NO_UPDATES = np.zeros((0, 3), np.int32)
_NO_COPIES = np.zeros((0, 3), np.int32)
_NO_TOKENS = np.zeros(0, np.int32)


class Budget:
    """A shard's remaining budget in a step: tokens, scored positions, copies of blocks."""

    __slots__ = ("copies", "scored", "tokens")

    def __init__(self, shapes: EngineShapes):
        self.tokens, self.scored = shapes.max_num_batched_tokens, shapes.max_scored
        self.copies = shapes.copy_blocks

    def spend(self, rows: int) -> None:
        """A scored token for each row."""
        self.tokens -= rows
        self.scored -= rows


class PlanBuilder:
    """One step in the making: what is left of its budgets, one a shard, and its rows so far."""

    def __init__(self, shapes: EngineShapes, table: SlotTable):
        self._table = table
        self._stages = shapes.stages
        self._updates: list[list[tuple[int, int, int]]] = [[] for _ in shapes.groups]
        self._each: list[np.ndarray] = []
        self._copies: list[list[tuple[int, int, int]]] = [[] for _ in shapes.groups]
        self._decode: list[np.ndarray] = []
        self._steps: np.ndarray | None = None
        self._multi_token = StepKind.MULTI_STEP
        self._chunks: list[tuple[int, int, int, bool]] = []
        self._tokens: list[Sequence[int] | np.ndarray] = []
        self._targets: list[Sequence[int]] = []
        self.admissions: list[SlotInit] = []
        self.budgets = [Budget(shapes) for _ in range(shapes.shards)]
        self.has_row = np.zeros(shapes.all_seqs, bool)

    @property
    def empty(self) -> bool:
        return not self._decode and not self._chunks

    def add_decode(self, slots: np.ndarray) -> None:
        """Rows of one token that the device holds, each of which samples the next."""
        if len(slots):
            self._decode.append(slots)
            self.has_row[slots] = True
            self._spend(slots)

    def add_multi_token(self, kind: StepKind, slots: np.ndarray, steps: np.ndarray) -> None:
        """Rows that get at most `steps` tokens each, one after another; they are all of the plan's rows. kind: how."""
        self.add_decode(slots)
        self._steps, self._multi_token = steps.astype(np.int32), kind

    def add_chunk(
        self, slot: int, tokens: Sequence[int] | np.ndarray, targets: Sequence[int], *, samples: bool, held: bool = True
    ) -> None:
        """A row whose tokens come from the host. targets: an entry a scored position, -1 for the one that samples.
        held: the slot's newest token is on the device already: `admit` wrote it there."""
        if held and samples and len(tokens) == len(targets) == 1:
            return self.add_decode(np.array([slot], np.int32))
        self._chunks.append((slot, len(tokens), len(targets), samples))
        self.has_row[slot] = True
        self._tokens.append(tokens)
        self._targets.append(targets)
        budget = self.budgets[slot // self._table.shard_slots]
        budget.tokens -= len(tokens)
        budget.scored -= len(targets)
        return None

    def limit_prompts(self, tokens: int) -> None:
        """Leaves at most so many tokens of each shard to rows that are added from now on."""
        for budget in self.budgets:
            budget.tokens = min(budget.tokens, tokens)

    def add_blocks(self, slot: int, first: int, blocks: Sequence[Sequence[int]]) -> None:
        """New blocks of a slot, a list a KV group, from index `first` of its block table on."""
        for group, new in enumerate(blocks):
            self._updates[group] += [(slot, first + i, block) for i, block in enumerate(new)]

    def add_block_each(self, slots: np.ndarray, indexes: np.ndarray, blocks: Sequence[Sequence[int]]) -> None:
        """One new block a slot, at an index of its block table; a list of blocks a KV group. Once a plan."""
        self._each = [np.stack([slots, indexes, np.array(new, np.int32)], axis=1) for new in blocks]

    def add_copies(self, shard: int, copies: Sequence[tuple[int, int]]) -> None:
        """One (source, destination) a KV group, of a shard's blocks."""
        self.budgets[shard].copies -= 1
        for group, copy in enumerate(copies):
            self._copies[group].append((shard, *copy))

    def finish(self, index: int) -> StepPlan:
        """The plan. Starts are read from the table, which must not have been advanced yet."""
        table = self._table
        decode = np.concatenate(self._decode) if self._decode else _NO_TOKENS
        slots, ones = decode, np.ones(len(decode), np.int32)
        counts, scored, samples = ones, ones, ones if self._steps is None else self._steps
        kind = StepKind.DECODE if self._steps is None else self._multi_token
        tokens = targets = _NO_TOKENS
        if self._chunks:
            kind = StepKind.MIXED
            rows = np.concatenate([(slots, counts, scored, samples), np.array(self._chunks, np.int32).T], axis=1)
            slots, counts, scored, samples = rows
            tokens = np.concatenate([np.asarray(chunk, np.int32) for chunk in self._tokens])
            targets = np.concatenate([np.asarray(chunk, np.int32) for chunk in self._targets])
        return StepPlan(
            kind=kind,
            index=index,
            admissions=tuple(self.admissions),
            slots=slots,
            epochs=table.epoch[slots],
            starts=table.computed[slots],
            counts=counts,
            scored=scored,
            samples=samples,
            unread=table.unread[slots],
            num_decode=len(decode),
            tokens=tokens,
            targets=targets,
            block_updates=tuple(self._block_updates(group) for group in range(len(self._updates))),
            copies=tuple(np.array(rows, np.int32) if rows else _NO_COPIES for rows in self._copies),
            logprobs=bool(table.logprobs[slots].any()),
            needs=-1 if self._stages == 1 else int(table.drawn_at[decode].max(initial=-1)),
            drawn=None if self._stages == 1 else (table.drawn_at[slots] >= 0).astype(np.int32),
        )

    def _spend(self, slots: np.ndarray) -> None:
        """A scored token for each slot."""
        if len(self.budgets) == 1:
            self.budgets[0].spend(len(slots))
            return
        counts = np.bincount(self._table.shards_of(slots), minlength=len(self.budgets)).tolist()
        for budget, count in zip(self.budgets, counts, strict=True):
            budget.spend(count)

    def _block_updates(self, group: int) -> np.ndarray:
        rows = self._updates[group]
        each = self._each[group] if self._each else _NO_UPDATES
        return np.concatenate([each, np.array(rows, np.int32)]) if rows else each
