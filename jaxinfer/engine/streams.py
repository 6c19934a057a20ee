"""Streams: what has come from an engine and was not read yet, by request. Lives in an event loop."""

import asyncio
from collections.abc import AsyncIterator, Iterable

from jaxinfer.engine.choices import Choices
from jaxinfer.engine.types import StepOutput, TokenDelta
from jaxinfer.errors import JaxinferError, ParameterError

_Item = list[TokenDelta] | JaxinferError


class Streams:
    """The open requests of one engine client."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}
        self._choices = Choices()

    @property
    def request_ids(self) -> list[str]:
        """Requests that have not ended."""
        return list(self._streams)

    def check_free(self, request_id: str) -> None:
        """Raises ParameterError where the id names an open request."""
        if request_id in self._streams:
            raise ParameterError("request_id", f"{request_id!r} is in use")

    def open(self, request_id: str, choices: int) -> AsyncIterator[list[TokenDelta]]:
        """What comes for a request of so many choices; it ends with the last of them, or raises what failed."""
        stream = self._streams[request_id] = _Stream(choices)
        return stream.read()

    def deliver(self, outputs: Iterable[StepOutput]) -> None:
        """Hands out what steps gave: one item a request."""
        by_request: dict[str, list[TokenDelta]] = {}
        for delta in self._choices.expand(outputs):
            by_request.setdefault(delta.request_id, []).append(delta)
        for request_id, deltas in by_request.items():
            stream = self._streams.get(request_id)
            if stream is not None and stream.put(deltas):
                del self._streams[request_id]

    def fail(self, request_id: str, error: JaxinferError) -> None:
        """Ends one request with an error."""
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            stream.fail(error)

    def fail_all(self, error: JaxinferError) -> None:
        """Ends every request with an error."""
        for request_id in self.request_ids:
            self.fail(request_id, error)
        self._choices = Choices()

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drops requests that nobody reads, and whose end was not told."""
        gone = set(request_ids)
        for request_id in gone:
            self._streams.pop(request_id, None)
        self._choices.forget(gone)


class _Stream:
    def __init__(self, choices: int):
        self._items: asyncio.Queue[_Item] = asyncio.Queue()
        self._open = choices
        self._unread = choices

    def put(self, deltas: list[TokenDelta]) -> bool:
        """True once every choice has ended."""
        self._items.put_nowait(deltas)
        self._open -= _ended(deltas)
        return self._open == 0

    def fail(self, error: JaxinferError) -> None:
        self._items.put_nowait(error)

    async def read(self) -> AsyncIterator[list[TokenDelta]]:
        while self._unread:
            item = await self._items.get()
            if isinstance(item, JaxinferError):
                raise item
            self._unread -= _ended(item)
            yield item


def _ended(deltas: list[TokenDelta]) -> int:
    return sum(delta.finish_reason is not None for delta in deltas)
