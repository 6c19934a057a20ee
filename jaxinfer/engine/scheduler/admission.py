"""Admission: which waiting sequences get a slot, what the device is given with it, and who is preempted for them."""

import enum
from collections import abc
from operator import attrgetter

import numpy as np

from jaxinfer.config import CacheConfig, SchedulerConfig
from jaxinfer.engine.scheduler.allocation_failures import AllocationFailures
from jaxinfer.engine.scheduler.fault_isolation import FaultIsolation
from jaxinfer.engine.scheduler.placement import shards_by_cost
from jaxinfer.engine.scheduler.policy import Policy
from jaxinfer.engine.scheduler.preemption import Preemption
from jaxinfer.engine.scheduler.rows import HostRows, RowSize
from jaxinfer.engine.scheduler.state import SchedulerState
from jaxinfer.engine.sequence import Sequence
from jaxinfer.engine.step.builder import PlanBuilder
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.engine.step.slot_init import MAX_COUNT, SEEN_IN_PROMPT, SlotInit


class _Tried(enum.Enum):
    """Outcome of trying a sequence in a shard. PARTIAL: one step would not compute all of it, and no more such may
    enter."""

    ADMITTED = enum.auto()
    PARTIAL = enum.auto()
    TOO_FEW_BLOCKS = enum.auto()


class Admission:
    """The way from the queue into slots, each of some shard.

    failures: sequences that found too few blocks. num_partial: prompts that the current plan leaves half computed.
    prefix_queries, prefix_hits, admitted_tokens: totals, in tokens.
    """

    def __init__(
        self,
        state: SchedulerState,
        policy: Policy,
        scheduler: SchedulerConfig,
        cache: CacheConfig,
        *,
        isolation: FaultIsolation,
        rows: HostRows,
    ):
        self._state = state
        self._isolation = isolation
        self._rows = rows
        self._preempts = policy.preempts
        self._max_partial = scheduler.max_num_partial_prefills
        self._watermark = int(cache.kv_watermark * min(group.num_blocks for group in state.shapes.groups))
        self._first_victim: Sequence | None = None
        self._preemptions_before = 0
        self.failures = AllocationFailures(state)
        self._preemption = Preemption(state, self.failures, watermark=self._watermark, max_chunk=rows.max_chunk)
        self.num_partial = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.admitted_tokens = 0

    @property
    def takes_partial(self) -> bool:
        """True where a prompt may enter that one step does not compute whole."""
        return self._max_partial is None or self.num_partial < self._max_partial

    def begin_plan(self) -> None:
        """Must be called first: where the policy allows it, running sequences are preempted for waiting ones."""
        self._first_victim = None
        if self._preempts and not self._isolation.active:
            self._preempt_for_waiting()
        self._preemptions_before = self._state.preemptions

    def admit_waiting(self, plan: PlanBuilder, *, before: Sequence | None = None) -> None:
        """Gives waiting sequences slots while slots, blocks and both budgets last; only those that outrank `before`."""
        state = self._state
        # A victim is not resumed by the plan that preempted it, nor is anyone admitted by one that was short of blocks.
        if state.preemptions != self._preemptions_before or state.must_drain or not len(state.queue):
            return
        closed: list[int] = []
        budgets = _spent(plan)
        while shards := self._shards_with_room(plan, closed):
            sequence = state.queue.peek_for(shards, deferred=self.takes_partial)
            if sequence is None or any(other and sequence.rank >= other.rank for other in (self._first_victim, before)):
                return
            if sequence.is_waiting_fork:
                shards = [sequence.kv.shard]
                admitted = self._admit_fork(plan, sequence)
            else:
                admitted = self._admit(plan, sequence, shards, budgets == _spent(plan))
            if admitted or self._drop_reference(sequence, shards):
                continue
            if not sequence.is_waiting_fork:
                return
            # Others may have the other shards; what its own has left is for the fork.
            closed.append(sequence.kv.shard)

    def somebody_may_enter(self) -> bool:
        """True where a waiting sequence could use a share of this step's tokens."""
        state = self._state
        shards = state.table.open_shards
        while shards and (head := state.queue.peek_for(shards, deferred=self.takes_partial)) is not None:
            own = [head.kv.shard] if head.is_waiting_fork else shards
            if any(self.failures.missing(head, shard) is None for shard in own):
                return True
            if not head.is_waiting_fork:
                return False
            shards.remove(head.kv.shard)
        return False

    def _shards_with_room(self, plan: PlanBuilder, closed: abc.Container[int]) -> list[int]:
        """Return the shards with a free slot and some of both budgets that are not closed to this plan; none while an
        isolated sequence is computed."""
        shards = [
            shard
            for shard in self._state.table.open_shards
            if shard not in closed and plan.budgets[shard].tokens > 0 < plan.budgets[shard].scored
        ]
        return shards if shards and self._isolation.may_admit() else []

    def _drop_reference(self, head: Sequence, shards: abc.Iterable[int]) -> bool:
        """Lets a waiting fork give up its parent's blocks in a shard that has too few for `head`, where nobody has a
        slot: they would hold up the queue for good."""
        state = self._state
        for shard in shards:
            lacks_blocks = state.table.is_empty(shard) and self.failures.failed_in(head, shard)
            if lacks_blocks and state.forks.drop_last_reference(shard=shard):
                return True
        return False

    def _preempt_for_waiting(self) -> None:
        """Preempts running sequences for waiting ones that outrank them and lack a slot or blocks."""
        state = self._state
        victims = self._preemption.victims(deferred=self.takes_partial)
        if victims and state.in_flight:
            state.must_drain = True
            return
        for victim in victims:
            state.preempt(victim)
        self._first_victim = min(victims, key=attrgetter("rank"), default=None)

    def _admit(self, plan: PlanBuilder, sequence: Sequence, shards: abc.Iterable[int], is_first: bool) -> bool:
        """A slot for a sequence that holds no blocks, in the cheapest of `shards` that can take it. False: nobody else
        can enter.

        is_first: nobody was admitted before it to this plan.
        """
        untried = [shard for shard in shards if self.failures.missing(sequence, shard) is None]
        if not untried:
            return False
        outcomes = set()
        for shard in shards_by_cost(self._state, sequence, untried):
            sequence.kv.shard = shard
            tried = self._admit_to_shard(plan, sequence)
            if tried is _Tried.ADMITTED:
                return True
            outcomes.add(tried)
        if _Tried.PARTIAL not in outcomes:
            return False
        # NOTE: one that was not the first to be tried may fit into the next plan.
        if is_first:
            self._state.queue.defer(sequence)
        return is_first

    def _admit_to_shard(self, plan: PlanBuilder, sequence: Sequence) -> _Tried:
        """A slot in its shard, and a row for what of it fits."""
        state = self._state
        goal = sequence.num_known - sequence.is_parent
        start = state.match(sequence)
        size = self._rows.size(plan, sequence, goal - start, plan.budgets[sequence.kv.shard].tokens)
        left_to_compute = goal - start - size.tokens
        # The last token of a sequence that samples is not prefill.
        is_partial = left_to_compute > (0 if sequence.is_parent else 1)
        if is_partial and not self.takes_partial:
            state.kv.release(sequence.kv)
            return _Tried.PARTIAL
        if not self._allocate(sequence, start, size.tokens, goal):
            return _Tried.TOO_FEW_BLOCKS
        self.num_partial += is_partial
        self._count_lookup(sequence, start)
        self._enter(plan, sequence, start, goal)
        if size.tokens:
            self._rows.add(plan, sequence, start, size)
        return _Tried.ADMITTED

    def _allocate(self, sequence: Sequence, start: int, count: int, goal: int) -> bool:
        """Blocks for a sequence's first row; where there are too few, none, and `failures` says what is missing."""
        kv = self._state.kv
        reserve = self._watermark if self._state.runs_in(sequence.kv.shard) else 0
        has_row = count > 0 or start == goal
        if has_row and kv.grow(sequence.kv, start + count, reserve=reserve):
            self.failures.forget_head()
            return True
        missing = kv.missing(sequence.kv, start + count, reserve=reserve)
        kv.release(sequence.kv)
        if has_row:
            self.failures.note(sequence, missing)
        return False

    def _admit_fork(self, plan: PlanBuilder, sequence: Sequence) -> bool:
        """A slot for a sequence that waits with its parent's blocks; it owns its last block from now on."""
        state = self._state
        start = sequence.fork_computed
        if start % state.shapes.block_size:
            if not plan.budgets[sequence.kv.shard].copies:
                return False
            copies = state.kv.own_last_block(sequence.kv)
            if copies is not None:
                plan.add_copies(sequence.kv.shard, copies)
        else:
            copies = state.kv.grow(sequence.kv, start + 1) or None
        if copies is None:
            self.failures.note(sequence, 1)
            return False
        self._enter(plan, sequence, start, sequence.num_known)
        self._rows.add(plan, sequence, start, RowSize(1, 1))
        return True

    def _enter(self, plan: PlanBuilder, sequence: Sequence, computed: int, total: int) -> None:
        self._state.admit(sequence, computed=computed, total=total)
        self.failures.forget_fork(sequence.kv.shard)
        self._isolation.note_admission(sequence)
        plan.admissions.append(slot_init(sequence, self._state.shapes))

    def _count_lookup(self, sequence: Sequence, hit: int) -> None:
        if sequence.was_admitted:
            return
        sequence.was_admitted = True
        sequence.cached_tokens = hit
        self.admitted_tokens += sequence.prompt_len
        if self._state.kv.caching:
            self.prefix_queries += sequence.prompt_len
            self.prefix_hits += hit


def _spent(plan: PlanBuilder) -> list[tuple[int, int]]:
    return [(budget.tokens, budget.scored) for budget in plan.budgets]


def slot_init(sequence: Sequence, shapes: EngineShapes) -> SlotInit:
    """The slot state of a sequence that has just got its slot; where drafts are made, with all of its known tokens."""
    return SlotInit(
        slot=sequence.slot,
        length=sequence.num_known - 1,
        last_token=int(sequence.tokens[-1]),
        prompt_len=sequence.prompt_len,
        remaining=sequence.limit - sequence.num_known,
        seed=sequence.seed,
        sequence_index=sequence.index,
        params=sequence.params,
        stop_ids=tuple(sequence.stop_ids),
        blocks=tuple(list(blocks) for blocks in sequence.kv.blocks),
        counts=packed_counts(sequence) if sequence.params.uses_counts else None,
        constrained=sequence.matcher is not None,
        tokens=None if shapes.drafting is None else sequence.tokens.copy(),
        prediction=prediction_places(sequence, shapes),
    )


def prediction_places(sequence: Sequence, shapes: EngineShapes) -> np.ndarray:
    """A sequence's prediction as the end of its row of history has it, int32: after the prompt's last `longest` tokens,
    by which the n-gram search finds its beginning, and cut to what the prompt leaves of the row. Empty: none."""
    if shapes.drafting is None or not len(sequence.prediction):
        return sequence.prediction
    prompt = sequence.tokens[: sequence.prompt_len]
    places = np.concatenate([prompt[-shapes.drafting.longest :], sequence.prediction])
    return places[: shapes.max_model_len - len(prompt)]


def packed_counts(sequence: Sequence) -> tuple[np.ndarray, np.ndarray]:
    """(token ids, packed counts) of a sequence's known tokens, both int32, ids distinct."""
    ids, where = np.unique(sequence.tokens, return_inverse=True)
    generated = np.bincount(where[sequence.prompt_len :], minlength=len(ids))
    seen = np.zeros(len(ids), np.int32)
    seen[where[: sequence.prompt_len]] = SEEN_IN_PROMPT
    return ids.astype(np.int32), (seen + np.minimum(generated, MAX_COUNT)).astype(np.int32)
