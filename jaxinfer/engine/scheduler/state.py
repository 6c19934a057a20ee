"""SchedulerState: what the parts of a scheduler share, and every change to it."""

from bisect import insort
from collections.abc import Callable
from operator import attrgetter

import numpy as np

from jaxinfer.config import CacheConfig, SchedulerConfig
from jaxinfer.engine.kv.manager import KVCache
from jaxinfer.engine.kv.shards import KVShards
from jaxinfer.engine.scheduler.fair_order import FairOrder
from jaxinfer.engine.scheduler.forks import Forks
from jaxinfer.engine.scheduler.queue import WaitingQueue
from jaxinfer.engine.sequence import Sequence, Status
from jaxinfer.engine.slot_table import SlotTable
from jaxinfer.engine.step.plan import MULTI_TOKEN, StepKind, StepPlan
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.speculation import Method

_BY_RANK = attrgetter("rank")


class SchedulerState:
    """Slots, blocks, the queue, and which sequence has what of them.

    kv_shards: blocks and prefix cache of each shard. kv: of all of them.
    running: sequences with a slot that still have tokens to plan, in rank order.
    in_flight: steps that were dispatched and not collected.
    must_drain: the caller must collect every step in flight before the next plan: nobody is preempted while a result
        in flight may free blocks.
    """

    def __init__(
        self, shapes: EngineShapes, scheduler: SchedulerConfig, cache: CacheConfig, clock: Callable[[], int]
    ) -> None:
        self.shapes = shapes
        self.clock = clock
        kept = cache.prefix_cache_max_tokens
        kept = None if kept is None else kept // shapes.shards
        self.kv_shards = [
            KVCache(
                shapes.block_size,
                shapes.groups,
                enable_prefix_caching=cache.enable_prefix_caching,
                max_cached_tokens=kept,
            )
            for _ in range(shapes.shards)
        ]
        self.kv = self.kv_shards[0] if shapes.shards == 1 else KVShards(self.kv_shards)
        self.table = SlotTable(shapes.max_num_seqs, shapes.max_model_len, shapes.shards)
        self.queue = WaitingQueue(None if scheduler.fair_share == "off" else FairOrder())
        self.forks = Forks(self.kv, self.table, self.queue)
        self.running: list[Sequence] = []
        self.in_flight = 0
        self.must_drain = False
        self.preemptions = 0
        self._running_slots: np.ndarray | None = None

    def running_slots(self) -> np.ndarray:
        """Slots of the running sequences, int32, in rank order."""
        if self._running_slots is None:
            self._running_slots = np.array([sequence.slot for sequence in self.running], np.int32)
        return self._running_slots

    def running_in(self, shard: int) -> list[Sequence]:
        """Running sequences of a shard, in rank order."""
        if self.shapes.shards == 1:
            return self.running
        return [sequence for sequence in self.running if sequence.kv.shard == shard]

    def runs_in(self, shard: int) -> bool:
        """Return whether any running sequence is in a shard."""
        if self.shapes.shards == 1:
            return bool(self.running)
        return bool((self.table.shards_of(self.running_slots()) == shard).any())

    def cached_tokens(self, sequence: Sequence) -> int:
        """Prompt tokens that are in the prefix cache now."""
        return 0 if sequence.owes_prompt_logprobs else self.kv.cached_tokens(sequence.kv, sequence.tokens)

    def match(self, sequence: Sequence) -> int:
        """Takes the longest cached prefix of a sequence that holds no blocks. Returns its tokens.

        A prompt whose log-probabilities are still owed is computed whole, since cached blocks hold no logits.
        """
        if not sequence.owes_prompt_logprobs:
            return self.kv.match(sequence.kv, sequence.tokens)
        self.kv.enter(sequence.kv, sequence.tokens, sequence.limit)
        return 0

    def admit(self, sequence: Sequence, *, computed: int, total: int) -> None:
        """Gives a slot to the sequence that `queue.peek` has just returned, whose blocks hold `computed` positions."""
        self.queue.take(sequence)
        self.queue.charge(sequence, computed)
        sequence.status = Status.RUNNING
        if sequence.scheduled_at is None:
            sequence.scheduled_at = self.clock()
        capacity = len(sequence.kv.blocks[0]) * self.shapes.block_size
        self.table.take(sequence, computed=computed, total=total, capacity=capacity)
        insort(self.running, sequence, key=_BY_RANK)
        self.forks.enter(sequence)
        self._running_slots = None

    def dispatch(self, plan: StepPlan) -> None:
        """Counts a plan's rows as computed, and the tokens that they may sample as in flight."""
        table, slots = self.table, plan.slots
        table.computed[slots] += plan.counts
        if plan.kind in MULTI_TOKEN:  # the last token that a row samples is not computed by it
            table.computed[slots] += plan.samples - 1
        table.total[slots] += plan.samples
        if self.shapes.drafting is not None and self.shapes.drafting.method != "ngram":
            table.unread[slots] = _unread_after(plan, self.shapes.drafting.method)
        if self.shapes.stages > 1:
            drawing = slots[plan.samples > 0]
            table.drawn_at[drawing], table.planned_tokens[drawing] = plan.index, plan.samples[plan.samples > 0]
        if table.num_constrained:
            table.plain_next[slots] = False
            table.foreseen[slots[plan.samples > 0]] = False
        for slot in slots[(table.total[slots] >= table.limit[slots]) & (plan.samples > 0)].tolist():
            sequence = table.sequences[slot]
            assert sequence is not None
            sequence.status = Status.DRAINING
            self.running.remove(sequence)
            self._running_slots = None
        self.in_flight += 1

    def foresee(self, slot: int, tokens: np.ndarray) -> int:
        """Notes tokens, int32, that a running sequence will have from the one on that the last plan samples: they are
        planned as those of prompts are, and confirmed when a step that computes them is collected. Returns the position
        of the first."""
        table, first = self.table, int(self.table.total[slot]) - 1
        table.tokens[slot, first : first + len(tokens)] = tokens
        table.total[slot] += len(tokens) - 1
        table.foreseen[slot] = True
        return first

    def take_back(self, slots: np.ndarray, counts: np.ndarray) -> None:
        """Withdraws the last `counts` tokens that were planned for sequences that go on, int [n], so that they are
        planned again: their step sampled fewer than it might have. Sequences that were draining run again."""
        table = self.table
        drained = slots[table.total[slots] >= table.limit[slots]]
        table.computed[slots] -= counts
        table.total[slots] -= counts
        for slot in drained.tolist():
            sequence = table.sequences[slot]
            if sequence is not None and sequence.status is Status.DRAINING:
                sequence.status = Status.RUNNING
                insort(self.running, sequence, key=_BY_RANK)
                self._running_slots = None

    def finish(self, sequence: Sequence) -> None:
        """Takes a sequence out wherever it is; its slot and blocks are free for later plans."""
        waiting = sequence.status is Status.WAITING
        sequence.status = Status.FINISHED
        if waiting:
            self.queue.remove(sequence)
        computed = sequence.prompt_len if sequence.slot < 0 else int(self.table.computed[sequence.slot])
        self.queue.settle(sequence, computed)
        self._release(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """Takes slot and blocks from a running sequence, which will compute its tokens again."""
        self.requeue(sequence)
        self.preemptions += 1
        sequence.preemptions += 1

    def requeue(self, sequence: Sequence) -> None:
        """Takes slot and blocks from a sequence and puts it back in the queue."""
        self._release(sequence)
        if sequence.owes_prompt_logprobs:
            sequence.prompt_logprobs = [None]
        sequence.status = Status.WAITING
        self.queue.push(sequence)

    def requeue_all(self) -> None:
        """After the device has lost its blocks and slots, and every step in flight."""
        for sequence in [sequence for sequence in self.table.sequences if sequence is not None]:
            self.requeue(sequence)
        self.forks.drop_all_references()
        self.kv.forget_all()
        self.in_flight = 0

    def _release(self, sequence: Sequence) -> None:
        if sequence.slot >= 0:
            self.table.release(sequence)
            if sequence in self.running:
                self.running.remove(sequence)
            self._running_slots = None
        self.forks.leave(sequence)
        self.kv.release(sequence.kv)


def _unread_after(plan: StepPlan, method: Method) -> np.ndarray:
    """`StepPlan.unread` of each row after a plan, int32. A draft model reads prompts with the model, and what it drafts
    but the last: where all drafts are kept, that one and the newest token are new to it. Where it has read all but the
    newest token of a row, it reads on with a mixed step, but a head, which needs the token after each, does not: other
    decode steps pass both by."""
    longer = plan.unread + plan.counts
    if plan.kind is StepKind.MIXED:
        passed_by = plan.unread > 1
        if method == "eagle3":
            passed_by |= np.arange(plan.num_rows) < plan.num_decode
        return np.where(passed_by, longer, 1)
    return np.where(plan.samples > 1, 2, longer) if plan.kind is StepKind.SPECULATE else longer
