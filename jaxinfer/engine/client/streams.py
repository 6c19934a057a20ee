"""Streams: what has come from an engine and was not read yet, by request. Lives in an event loop."""

import asyncio
from collections.abc import AsyncIterator, Iterable

from jaxinfer.engine.client.sequence_ids import SequenceIds
from jaxinfer.engine.types import StepOutput, TokenDelta
from jaxinfer.errors import EngineDeadError, JaxinferError, ParameterError


class Streams:
    """The open requests of one engine client."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}
        self._sequence_ids = SequenceIds()

    @property
    def request_ids(self) -> list[str]:
        """Requests that have not ended."""
        return list(self._streams)

    def check_free(self, request_id: str) -> None:
        """Raises ParameterError where the id names an open request."""
        if request_id in self._streams:
            raise ParameterError("request_id", f"{request_id!r} is in use")

    def open(self, request_id: str, sequences: int) -> AsyncIterator[list[TokenDelta]]:
        """Yield the deltas of a request of so many sequences. The stream ends with the last of them, or raises the
        request's error."""
        stream = self._streams[request_id] = _Stream(sequences)
        return stream.read()

    def deliver(self, outputs: Iterable[StepOutput]) -> None:
        """Hands out what steps gave: one item a request."""
        by_request: dict[str, list[TokenDelta]] = {}
        for delta in self._sequence_ids.expand(outputs):
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

    def fail_all(self, message: str) -> None:
        """Ends every request with an EngineDeadError of its own."""
        for request_id in self.request_ids:
            self.fail(request_id, EngineDeadError(message))
        self._sequence_ids = SequenceIds()

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drops requests that nobody reads, and whose end was not told."""
        gone = set(request_ids)
        for request_id in gone:
            self._streams.pop(request_id, None)
        self._sequence_ids.forget(gone)


class _Stream:
    """The queue of one reader, who gets everything that came since the last read at once."""

    def __init__(self, sequences: int):
        self._deltas: list[TokenDelta] = []
        self._error: JaxinferError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._open = sequences
        self._unread = sequences

    def put(self, deltas: list[TokenDelta]) -> bool:
        """True once every sequence has ended."""
        self._deltas += deltas
        self._open -= _ended(deltas)
        self._wake()
        return self._open == 0

    def fail(self, error: JaxinferError) -> None:
        self._error = error
        self._wake()

    async def read(self) -> AsyncIterator[list[TokenDelta]]:
        while self._unread:
            while not self._deltas and self._error is None:
                self._reader = asyncio.get_running_loop().create_future()
                await self._reader
            if self._deltas:
                deltas, self._deltas = self._deltas, []
                self._unread -= _ended(deltas)
                yield deltas
            elif self._error is not None:
                raise self._error

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def _ended(deltas: list[TokenDelta]) -> int:
    return sum(delta.finish_reason is not None for delta in deltas)
