"""Server-sent events."""

from collections.abc import Iterable

import msgspec
from aiohttp import web

from jaxinfer.server.errors import as_http_error, error_body

_encode = msgspec.json.Encoder().encode

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class EventStream:
    """A response that is a stream of JSON events."""

    def __init__(self) -> None:
        self.response = web.StreamResponse(headers=_HEADERS)

    async def open(self, request: web.Request) -> None:
        """Sends the status and the headers; from here on errors are events."""
        await self.response.prepare(request)

    async def send(self, events: Iterable[msgspec.Struct]) -> None:
        """Sends events in one write; waits while the client is slow."""
        data = b"".join(b"data: " + _encode(event) + b"\n\n" for event in events)
        if data:
            await self.response.write(data)

    async def fail(self, error: Exception) -> None:
        """Ends the stream with an error event; no `[DONE]` follows."""
        await self.response.write(b"data: " + error_body(as_http_error(error)) + b"\n\n")
        await self.response.write_eof()

    async def done(self) -> None:
        """Ends a stream that is complete."""
        await self.response.write(b"data: [DONE]\n\n")
        await self.response.write_eof()
