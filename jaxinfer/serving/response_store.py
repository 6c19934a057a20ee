"""ResponseStore: responses that later requests refer to, within bounds of number and bytes."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

_OVERHEAD = 512
"""Bytes of a response beside its texts, roughly."""

_ITEM_OVERHEAD = 128


class Chunk:
    """Items as JSON, one after another. Responses of one conversation share those that came before."""

    def __init__(self, items: tuple[bytes, ...]):
        self.items = items
        self.size = sum(map(len, items)) + _ITEM_OVERHEAD * len(items)


class StoredResponse(NamedTuple):
    """A response. reply: JSON of the whole. history: items before its own input. output_ids: ids of its output's items.

    Instructions are not part of the conversation.
    """

    id: str
    reply: bytes
    history: tuple[Chunk, ...]
    input: Chunk
    output: Chunk
    output_ids: tuple[str, ...]

    @property
    def conversation(self) -> tuple[Chunk, ...]:
        """All items, those of the response last."""
        return (*self.history, self.input, self.output)

    @property
    def own_size(self) -> int:
        """Bytes that it needs beside the items."""
        return len(self.reply) + _OVERHEAD + 8 * len(self.history)


class ResponseStore:
    """At most `max_responses` responses of at most `max_bytes` together, each for its owner alone.

    The oldest response of the owner with the most makes room, so that no owner can drive out the others'. Any thread
    may use it. note: what else to say where a response is not found.
    """

    def __init__(self, max_responses: int, max_bytes: int, note: str = ""):
        self.note = note
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._shelves: dict[str, _Shelf] = {}
        self._reserved = 0
        self._lock = threading.Lock()

    @contextmanager
    def reserved(self, size: int) -> Iterator[bool]:
        """Count bytes that wait until a response has ended, as many as the store may have at most.

        False: there are too many, and these must not wait, so that the response is not kept.
        """
        with self._lock:
            fits = self._reserved + size <= self._max_bytes
            self._reserved += size * fits
        try:
            yield fits
        finally:
            with self._lock:
                self._reserved -= size * fits

    def put(self, owner: str, response: StoredResponse) -> None:
        """Keep a response, unless it is larger than the store."""
        if not self._max_responses or _whole_size(response) > self._max_bytes:
            return
        with self._lock:
            self._shelves.setdefault(owner, _Shelf()).put(response)
            while self.num_responses > self._max_responses:
                self._drop_one(owner, lambda shelf: len(shelf.responses))
            while self.num_bytes > self._max_bytes:
                self._drop_one(owner, lambda shelf: shelf.size)
            self._forget_empty()

    def get(self, owner: str, response_id: str) -> StoredResponse | None:
        """An owner's response; None if it is not stored."""
        with self._lock:
            shelf = self._shelves.get(owner)
            return None if shelf is None else shelf.responses.get(response_id)

    def item(self, owner: str, item_id: str) -> bytes | None:
        """An item of the output of an owner's response; None if it is not stored."""
        with self._lock:
            shelf = self._shelves.get(owner)
            return None if shelf is None else shelf.items.get(item_id)

    def delete(self, owner: str, response_id: str) -> bool:
        """Forget an owner's response. Later ones keep the conversation up to them. False if it was not stored."""
        with self._lock:
            shelf = self._shelves.get(owner)
            if shelf is None or response_id not in shelf.responses:
                return False
            shelf.remove(response_id)
            self._forget_empty()
            return True

    @property
    def num_responses(self) -> int:
        """Responses of all owners."""
        return sum(len(shelf.responses) for shelf in self._shelves.values())

    @property
    def num_bytes(self) -> int:
        """Bytes of all owners."""
        return sum(shelf.size for shelf in self._shelves.values())

    def _drop_one(self, owner: str, measure: Callable[["_Shelf"], int]) -> None:
        """Drop the oldest response of whoever has most, but never the newest of `owner`, which fits by itself."""
        others = [shelf for name, shelf in self._shelves.items() if len(shelf.responses) > (name == owner)]
        max(others, key=measure).remove_oldest()

    def _forget_empty(self) -> None:
        for owner in [owner for owner, shelf in self._shelves.items() if not shelf.responses]:
            del self._shelves[owner]


class _Shelf:
    """Responses of one owner, the oldest first. A chunk counts once, however many of them share it."""

    def __init__(self) -> None:
        self.responses: dict[str, StoredResponse] = {}
        self.items: dict[str, bytes] = {}
        self.size = 0
        self._uses: Counter[Chunk] = Counter()

    def put(self, response: StoredResponse) -> None:
        """Add a response under an id that is not there yet."""
        self.responses[response.id] = response
        self.items.update(zip(response.output_ids, response.output.items, strict=True))
        self.size += response.own_size
        for chunk in response.conversation:
            self.size += chunk.size * (not self._uses[chunk])
            self._uses[chunk] += 1

    def remove(self, response_id: str) -> None:
        """Drop a response, and the items that no other one needs."""
        response = self.responses.pop(response_id)
        for item_id in response.output_ids:
            del self.items[item_id]
        self.size -= response.own_size
        for chunk in response.conversation:
            self._uses[chunk] -= 1
            if not self._uses[chunk]:
                del self._uses[chunk]
                self.size -= chunk.size

    def remove_oldest(self) -> None:
        """Drop the response that has been here for longest."""
        self.remove(next(iter(self.responses)))


def _whole_size(response: StoredResponse) -> int:
    """Bytes of a response with all of its conversation."""
    return response.own_size + sum(chunk.size for chunk in response.conversation)
