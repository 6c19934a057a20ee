"""A client of many streams that costs little: it counts events and reads nothing in them."""

import asyncio
import json
import time
from typing import Any, NamedTuple
from urllib.parse import urlsplit


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

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        events = data.count(b"data: {")
        self._counter.events += events
        if events and not self._begun:
            self._begun = True
            self._counter.begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._counter.failed.set()


class _Counter:
    def __init__(self, streams: int):
        self.events = 0
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
    place, data = urlsplit(url), json.dumps({**body, "stream": True}).encode()
    assert place.hostname is not None
    assert place.port is not None
    head = f"POST {place.path} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data
    counter, loop = _Counter(streams), asyncio.get_running_loop()
    transports = []
    for _ in range(streams):
        transport, _ = await loop.create_connection(lambda: _Stream(request, counter), place.hostname, place.port)
        transports.append(transport)
    async with asyncio.timeout(120):
        await counter.all_begun.wait()
    await asyncio.sleep(settle)
    first, start = counter.events, time.perf_counter()
    await asyncio.sleep(seconds)
    found = Streams(counter.events - first, time.perf_counter() - start)
    if counter.failed.is_set():
        raise RuntimeError("a stream ended before its time")
    for transport in transports:
        transport.abort()
    return found
