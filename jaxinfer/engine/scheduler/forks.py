"""Forks: how one computed prompt becomes several choices."""

from operator import attrgetter

from jaxinfer.engine.kv.manager import KVCache
from jaxinfer.engine.scheduler.queue import WaitingQueue
from jaxinfer.engine.sequence import Request
from jaxinfer.engine.slot_table import SlotTable


class Forks:
    """Parents whose choices have not parted yet, and choices that wait for a slot with pages of their parent.

    new_choices: choices that were made and nobody has fetched yet.
    """

    def __init__(self, kv: KVCache, table: SlotTable, waiting: WaitingQueue):
        self._kv = kv
        self._table = table
        self._waiting = waiting
        self._parents: list[Request] = []
        self._waiting_forks: list[Request] = []
        self.new_choices: list[Request] = []

    def enter(self, request: Request) -> None:
        """Must be called when a request gets a slot."""
        if request.is_parent:
            self._parents.append(request)
        if request.is_waiting_fork:
            self._waiting_forks.remove(request)
            request.is_waiting_fork = False

    def leave(self, request: Request) -> None:
        """Must be called when a request loses its slot or its place in the queue."""
        if request in self._parents:
            self._parents.remove(request)
        if request.is_waiting_fork:
            self._waiting_forks.remove(request)
            request.is_waiting_fork = False

    def part(self) -> None:
        """Parts the choices of every parent whose prompt but the last token is computed."""
        for parent in list(self._parents):
            slot = parent.slot
            if self._table.computed[slot] == self._table.total[slot] and self._kv.all_committed(parent):
                self._part(parent)

    def _part(self, parent: Request) -> None:
        children = [parent.child(index) for index in range(1, parent.fork_to)]
        for child in children:
            self._kv.fork(parent, child)
            child.is_waiting_fork, child.fork_computed = True, parent.prompt_len - 1
            child.cached_tokens, child.was_admitted = parent.cached_tokens, True
            self._waiting_forks.append(child)
            self._waiting.push(child)
        parent.fork_to = 1
        self._parents.remove(parent)
        self._table.total[parent.slot] = parent.prompt_len
        self._table.samples[parent.slot] = True
        self.new_choices += children

    def drop_last_reference(self, outranked_by: Request | None = None) -> bool:
        """Lets the last waiting choice in rank give up its parent's pages: it will compute its prompt itself.

        outranked_by: only where it comes after that request. False where there is none.
        """
        child = max(self._waiting_forks, key=attrgetter("rank"), default=None)
        if child is None or (outranked_by is not None and child.rank <= outranked_by.rank):
            return False
        self._waiting_forks.remove(child)
        child.is_waiting_fork = False
        self._kv.release(child)
        return True

    def drop_all_references(self) -> None:
        """Lets every waiting choice give up its parent's pages."""
        for child in self._waiting_forks:
            child.is_waiting_fork = False
            self._kv.release(child)
        self._waiting_forks.clear()
