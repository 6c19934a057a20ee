"""A client of many streams that costs little: it counts events and reads nothing in them."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit


class Streams(NamedTuple):
    """Events that came in `seconds` while every stream was under way."""

    events: int
    seconds: float


class _Stream(asyncio.Protocol):
    """One request; counts the events of its response."""

    def __init__(self, request: bytes, counter: "_Counter"):
        self._request = request
        self._counter = counter
        self._begun = False
        self.events = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        events = data.count(b"data: {")
        self.events += events
        if events and not self._begun:
            self._begun = True
            self._counter.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._counter.failed.set()


class _Counter:
    def __init__(self, streams: int):
        self.all_begun, self.failed = asyncio.Event(), asyncio.Event()
        self._waiting = streams

    def begin(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self.all_begun.set()


async def count_events(url: str, body: dict[str, Any], streams: int, settle: float, seconds: float) -> Streams:
    """Opens `streams` requests that stream, waits until all run and `settle` seconds more, then counts.

    url: of the endpoint. body: of each request, which must not end before. Raises RuntimeError where one does.
    """
    found = await count_streams(url, [body] * streams, settle, seconds)
    return Streams(sum(stream.events for stream in found), found[0].seconds)


async def count_streams(url: str, bodies: Sequence[dict[str, Any]], settle: float, seconds: float) -> list[Streams]:
    """Open a streaming request of each body and count as `count_events` does, each stream by itself."""
    place, loop = urlsplit(url), asyncio.get_running_loop()
    assert place.hostname is not None
    assert place.port is not None
    counter = _Counter(len(bodies))
    streams: list[_Stream] = []
    transports = []
    for body in bodies:
        stream = _Stream(_request(place, body), counter)
        transport, _ = await loop.create_connection(lambda stream=stream: stream, place.hostname, place.port)
        transports.append(transport)
        streams.append(stream)
    async with asyncio.timeout(120):
        await counter.all_begun.wait()
    await asyncio.sleep(settle)
    first, start = [stream.events for stream in streams], time.perf_counter()
    await asyncio.sleep(seconds)
    last, took = [stream.events for stream in streams], time.perf_counter() - start
    if counter.failed.is_set():
        raise RuntimeError("a stream ended before its time")
    for transport in transports:
        transport.abort()
    return [Streams(after - before, took) for before, after in zip(first, last, strict=True)]


def _request(place: SplitResult, body: dict[str, Any]) -> bytes:
    data = json.dumps({**body, "stream": True}).encode()
    head = f"POST {place.path} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
