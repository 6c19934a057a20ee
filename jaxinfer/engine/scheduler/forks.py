"""Forks: how one computed prompt becomes several sequences."""

from operator import attrgetter

from jaxinfer.engine.kv.manager import KVCache
from jaxinfer.engine.kv.shards import KVShards
from jaxinfer.engine.scheduler.queue import WaitingQueue
from jaxinfer.engine.sequence import Sequence
from jaxinfer.engine.slot_table import SlotTable


class Forks:
    """Parents whose sequences have not parted yet, and sequences that wait for a slot with blocks of their parent.

    new_sequences: sequences that were made and nobody has fetched yet.
    """

    def __init__(self, kv: KVCache | KVShards, table: SlotTable, waiting: WaitingQueue):
        self._kv = kv
        self._table = table
        self._waiting = waiting
        self._parents: list[Sequence] = []
        self._waiting_forks: list[Sequence] = []
        self.new_sequences: list[Sequence] = []

    def enter(self, sequence: Sequence) -> None:
        """Must be called when a sequence gets a slot."""
        if sequence.is_parent:
            self._parents.append(sequence)
        self._stop_waiting(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Must be called when a sequence loses its slot or its place in the queue."""
        if sequence in self._parents:
            self._parents.remove(sequence)
        self._stop_waiting(sequence)

    def part(self) -> None:
        """Parts the sequences of every parent whose prompt but the last token is computed."""
        for parent in list(self._parents):
            goal = parent.prompt_len - 1
            if self._table.computed[parent.slot] == goal and self._kv.all_committed(parent.kv, goal):
                self._part(parent)

    def _part(self, parent: Sequence) -> None:
        children = [parent.child(index, self._kv.fork(parent.kv)) for index in range(1, parent.fork_to)]
        for child in children:
            child.is_waiting_fork, child.fork_computed = True, parent.prompt_len - 1
            child.cached_tokens, child.was_admitted = parent.cached_tokens, True
            self._waiting_forks.append(child)
            self._waiting.push(child)
        parent.fork_to = 1
        self._parents.remove(parent)
        self._table.total[parent.slot] = parent.prompt_len
        self._table.samples[parent.slot] = True
        self.new_sequences += children

    def drop_last_reference(self, outranked_by: Sequence | None = None, *, shard: int | None = None) -> bool:
        """Lets the last waiting sequence in rank give up its parent's blocks: it will compute its prompt itself.

        outranked_by: only where it comes after that sequence. shard: one whose blocks are there; None: in any. False
        where there is none.
        """
        among = [child for child in self._waiting_forks if shard in (None, child.kv.shard)]
        child = max(among, key=attrgetter("rank"), default=None)
        if child is None or (outranked_by is not None and child.rank <= outranked_by.rank):
            return False
        self._drop_reference(child)
        return True

    def drop_all_references(self) -> None:
        """Lets every waiting sequence give up its parent's blocks."""
        for child in list(self._waiting_forks):
            self._drop_reference(child)

    def _drop_reference(self, child: Sequence) -> None:
        self._waiting.put_back(child)
        self._stop_waiting(child)
        self._kv.release(child.kv)

    def _stop_waiting(self, child: Sequence) -> None:
        if child.is_waiting_fork:
            self._waiting_forks.remove(child)
            child.is_waiting_fork = False
