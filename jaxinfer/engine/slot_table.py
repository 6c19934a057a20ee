"""SlotTable: the lengths of running sequences, as arrays over slots."""

import numpy as np

from jaxinfer.engine.sequence import Sequence

_NO_ID = -(2**31)


class SlotTable:
    """State of sequences that changes every step, kept in columns so that a step over all slots is a few vector
    operations.

    epoch: changes whenever a slot changes hands; results are keyed by (slot, epoch).
    computed: positions whose KV is computed by a dispatched step.
    collected: positions whose KV is computed by a collected step.
    total: tokens, known and in flight (sampled by a dispatched step and not read yet).
    next_trim: collected positions at which a block falls behind a window.
    tokens: [slots, max_model_len], of which the first `known` are confirmed.
    limit: tokens at which the sequence ends. capacity: positions that its blocks can hold.
    stop_ids: ids that end the sequence, as wide as anybody has needed yet.
    constrained: whether a matcher constrains the sequence. num_constrained: number of such sequences.
    num_predicted: sequences with a prediction. predictions: how often one has got a slot.
    foreseen: whether the last of `total` tokens are known, though not confirmed, and the device does not have them.
    unread: as in `StepPlan`, of the next plan.
    plain_next: whether the next plan of a constrained sequence is not to draft, whatever that costs.
    drawn_at: with several stages the last plan by which the sequence draws; -1 for none. planned_tokens: tokens that it
        may draw by that plan.
    samples: False for a parent, whose last computed position is not scored.
    shard_slots: slots of a shard; slots are numbered shard by shard.
    awaits_first_token: until the sequence's first token was collected. sequence_id: the sequence's.
    """

    def __init__(self, shard_slots: int, max_model_len: int, shards: int = 1):
        num_slots = shard_slots * shards
        self.shard_slots = shard_slots
        # Memory that nobody wrote to is not there yet: rows cost what their longest sequence has used.
        self.tokens = np.zeros((num_slots, max_model_len), np.int32)
        self.known = np.zeros(num_slots, np.int32)
        self.sequence_id = np.zeros(num_slots, np.int64)
        self.epoch = np.zeros(num_slots, np.int64)
        self.computed = np.zeros(num_slots, np.int32)
        self.collected = np.zeros(num_slots, np.int32)
        self.total = np.zeros(num_slots, np.int32)
        self.next_trim = np.zeros(num_slots, np.int32)
        self.limit = np.zeros(num_slots, np.int32)
        self.capacity = np.zeros(num_slots, np.int32)
        self.unread = np.ones(num_slots, np.int32)
        self.drawn_at = np.full(num_slots, -1, np.int64)
        self.planned_tokens = np.ones(num_slots, np.int32)
        self.plain_next = np.zeros(num_slots, bool)
        self.samples = np.zeros(num_slots, bool)
        self.awaits_first_token = np.zeros(num_slots, bool)
        self.stop_ids = np.full((num_slots, 1), _NO_ID, np.int32)
        self.logprobs = np.zeros(num_slots, bool)
        self.constrained = np.zeros(num_slots, bool)
        self.num_constrained = 0
        self.num_predicted = 0
        self.predictions = 0
        self.foreseen = np.zeros(num_slots, bool)
        self.sequences: list[Sequence | None] = [None] * num_slots
        self._free = [
            list(range(num_slots))[first : first + shard_slots][::-1] for first in range(0, num_slots, shard_slots)
        ]

    @property
    def num_free(self) -> int:
        return sum(map(len, self._free))

    @property
    def num_taken(self) -> int:
        return len(self.sequences) - self.num_free

    @property
    def open_shards(self) -> list[int]:
        """Return the shards with a free slot."""
        return [shard for shard, free in enumerate(self._free) if free]

    @property
    def prediction(self) -> int | None:
        """A number of the prediction that came last; None where no sequence has any."""
        return self.predictions if self.num_predicted else None

    def is_empty(self, shard: int) -> bool:
        """Return whether no slot of a shard is taken."""
        return len(self._free[shard]) == self.shard_slots

    def free_in(self, shard: int) -> int:
        """Free slots of a shard."""
        return len(self._free[shard])

    def shards_of(self, slots: np.ndarray) -> np.ndarray:
        """The shard of each slot."""
        return slots // self.shard_slots

    def take(self, sequence: Sequence, *, computed: int, total: int, capacity: int) -> int:
        """Gives `sequence` a slot of the shard that has its blocks."""
        slot, tokens = self._free[sequence.kv.shard].pop(), sequence.tokens
        self.tokens[slot, : len(tokens)] = tokens
        self.known[slot] = len(tokens)
        self.sequence_id[slot] = sequence.sequence_id
        self.epoch[slot] += 1
        self.computed[slot] = self.collected[slot] = computed
        self.total[slot] = total
        self.next_trim[slot] = 0
        self.limit[slot] = sequence.limit
        self.capacity[slot] = capacity
        self.unread[slot] = 1
        self.drawn_at[slot] = -1
        self.planned_tokens[slot] = 1
        self.plain_next[slot] = False
        self.samples[slot] = not sequence.is_parent
        self.awaits_first_token[slot] = sequence.num_outputs == 0
        self._set_stop_ids(slot, sorted(sequence.stop_ids))
        self.logprobs[slot] = sequence.params.logprobs is not None or sequence.prompt_logprobs is not None
        self.constrained[slot] = sequence.matcher is not None
        self.num_constrained += sequence.matcher is not None
        self.num_predicted += len(sequence.prediction) > 0
        self.predictions += len(sequence.prediction) > 0
        self.foreseen[slot] = False
        self.sequences[slot] = sequence
        sequence.slot, sequence.table = slot, self
        return slot

    def _set_stop_ids(self, slot: int, ids: list[int]) -> None:
        missing = len(ids) - self.stop_ids.shape[1]
        if missing > 0:
            self.stop_ids = np.pad(self.stop_ids, ((0, 0), (0, missing)), constant_values=_NO_ID)
        self.stop_ids[slot] = _NO_ID
        self.stop_ids[slot, : len(ids)] = ids

    def release(self, sequence: Sequence) -> None:
        """Takes the slot back: results that are still in flight for it are void from now on."""
        slot = sequence.slot
        sequence.waiting_tokens = sequence.tokens.copy()
        self.epoch[slot] += 1
        self.sequences[slot] = None
        self.num_constrained -= int(self.constrained[slot])
        self.num_predicted -= len(sequence.prediction) > 0
        self.constrained[slot] = False
        self._free[sequence.kv.shard].append(slot)
        sequence.slot, sequence.table = -1, None
