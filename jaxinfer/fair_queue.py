"""FairQueue: items of several keys, of which each key gets an equal share by cost.

Start-time fair queueing (Goyal, Vin and Cheng, "Start-time fair queueing", 1996): an item starts, in virtual time, when
the key's previous item ends, but not before now; its cost is the time from its start to its end. The earliest start is
next, and becomes now. A key that was idle starts now: it gains nothing by having been idle, and waits for no backlog
of another key.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


def _everyone(key: str) -> bool:
    return True


class FairQueue(Generic[Item]):
    """Items in the order in which they are next. Not safe for several threads."""

    def __init__(self) -> None:
        self._now = 0.0
        self._waiting: dict[str, deque[tuple[float, float, Item]]] = {}  # of each key starts, costs and items
        self._ends: dict[str, float] = {}  # of each key's last item

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def push(self, key: str, cost: float, item: Item) -> None:
        """Add an item after those of its key. cost: at least 0, in any unit that all items share."""
        start = max(self._now, self._ends.get(key, 0.0))
        self._ends[key] = start + cost
        self._waiting.setdefault(key, deque()).append((start, cost, item))

    def pop(self, may_start: Callable[[str], bool] = _everyone) -> tuple[str, Item] | None:
        """Take the next item, with its key; None if nothing waits. Keys that may not start are passed over."""
        keys = [key for key in self._waiting if may_start(key)]
        if not keys:
            return None
        key = min(keys, key=lambda each: self._waiting[each][0][0])  # of equal starts the key that began to wait first
        start, _, item = self._waiting[key].popleft()
        self._now = max(self._now, start)
        self._forget_idle(key)
        return key, item

    def discard(self, key: str, item: Item) -> None:
        """Take an item out; those of its key that come after it start earlier by its cost. Without effect if it is not
        there."""
        queue = self._waiting.get(key, deque())
        place = next((place for place, (_, _, each) in enumerate(queue) if each == item), None)
        if place is None:
            return
        entries = list(queue)
        _, saved, _ = entries.pop(place)
        later = [(start - saved, cost, each) for start, cost, each in entries[place:]]
        self._waiting[key] = deque([*entries[:place], *later])
        self._ends[key] -= saved
        self._forget_idle(key)

    def _forget_idle(self, key: str) -> None:
        """Drop the queue of a key without items, and the ends that lie behind: they change no start."""
        if not self._waiting[key]:
            del self._waiting[key]
        self._ends = {each: end for each, end in self._ends.items() if end > self._now or each in self._waiting}
