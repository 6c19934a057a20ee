"""AllocationFailures: which waiting sequences found too few blocks, and where."""

from typing import NamedTuple

from jaxinfer.engine.scheduler.state import SchedulerState
from jaxinfer.engine.sequence import Sequence

_HEAD = -1


class Lack(NamedTuple):
    """Shortage of blocks in a shard. available: blocks that were there, an entry a KV group. missing: how many more of
    a group were needed."""

    available: list[int]
    missing: int


class _Failure(NamedTuple):
    """lacks: by shard, those that the sequence tried and no others."""

    sequence: Sequence
    lacks: dict[int, Lack]


class AllocationFailures:
    """The last failure of the queue's head and, where there are several shards, of a fork in each: others pass it.

    To match a long prompt again in every step would cost more than the rest of the step.
    """

    def __init__(self, state: SchedulerState):
        self._state = state
        self._failures: dict[int, _Failure] = {}

    def __bool__(self) -> bool:
        """True while somebody waits for blocks."""
        return bool(self._failures)

    def note(self, sequence: Sequence, missing: int) -> None:
        """Must be called when a sequence's shard has too few blocks for it, after it has given back what it took."""
        key, shard = self._key(sequence), sequence.kv.shard
        failure = self._failures.get(key)
        if failure is None or failure.sequence is not sequence:
            failure = self._failures[key] = _Failure(sequence, {})
        available = [pool.num_available for pool in self._state.kv_shards[shard].pools]
        failure.lacks[shard] = Lack(available, missing)

    def missing(self, sequence: Sequence, shard: int) -> int | None:
        """Return how many more blocks the sequence needed in a shard; None if it has not tried, or might not fail
        now."""
        lack = self._lack(sequence, shard)
        if lack is None:
            return None
        for pool, then in zip(self._state.kv_shards[shard].pools, lack.available, strict=True):
            if pool.num_available > then:
                return None
        return lack.missing if self._state.runs_in(shard) else None  # with nobody running, no blocks are kept back

    def failed_in(self, sequence: Sequence, shard: int) -> bool:
        """Return whether a shard had too few blocks for the sequence when it was last tried."""
        return self._lack(sequence, shard) is not None

    def forget_head(self) -> None:
        """Must be called when a sequence that held no blocks has got some."""
        self._failures.pop(_HEAD, None)

    def forget_fork(self, shard: int) -> None:
        """Must be called when a shard gives a slot to a sequence."""
        self._failures.pop(shard, None)

    def forget_all(self) -> None:
        """Must be called when all blocks come free."""
        self._failures.clear()

    def _lack(self, sequence: Sequence, shard: int) -> Lack | None:
        failure = self._failures.get(self._key(sequence))
        return failure.lacks.get(shard) if failure is not None and failure.sequence is sequence else None

    def _key(self, sequence: Sequence) -> int:
        return sequence.kv.shard if sequence.is_waiting_fork and self._state.shapes.shards > 1 else _HEAD
