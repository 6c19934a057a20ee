"""The frame of a reply, whole or streamed: a stream is opened, and ends well or badly."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping

import msgspec
from aiohttp import web

from jaxinfer.server.context import CONTEXT
from jaxinfer.server.errors import as_http_error
from jaxinfer.server.keep_alive import KeepAlive
from jaxinfer.server.reply import Event, Reply
from jaxinfer.serving.generation import Generation
from jaxinfer.serving.usage import server_timing

_encode = msgspec.json.Encoder().encode

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class EventStream:
    """A response of server-sent events.

    Status and headers go out with the first event or comment: an error before is an HTTP error, with its own status.
    keep_alive: seconds of silence until a comment; 0: none. headers: beside those of every stream.
    """

    def __init__(self, request: web.Request, keep_alive: float, headers: Mapping[str, str]) -> None:
        self.response = web.StreamResponse(headers={**_HEADERS, **headers})
        self._request = request
        self._writer = KeepAlive(keep_alive, self._write)

    async def _write(self, data: bytes) -> None:
        await self.response.prepare(self._request)  # without effect from the second time on
        await self.response.write(data)

    async def send(self, events: Iterable[Event]) -> None:
        """Sends events in one write; waits while the client is slow."""
        data = b"".join(map(_encoded, events))
        if data:
            await self._writer.send(data)

    def kept_alive(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Send comments until the block ends, whenever the stream is silent."""
        return self._writer.running()

    async def end(self, events: Iterable[Event]) -> None:
        """Sends the last events, and ends the response."""
        await self._write(b"".join(map(_encoded, events)))
        await self.response.write_eof()


def _encoded(event: Event) -> bytes:
    name = b"" if event.name is None else b"event: " + event.name.encode() + b"\n"
    data = event.data if isinstance(event.data, bytes) else _encode(event.data)
    return name + b"data: " + data + b"\n\n"


async def send_reply(request: web.Request, generation: Generation, reply: Reply, *, stream: bool) -> web.StreamResponse:
    """Submits a generation and answers, in a stream where one is asked for."""
    if stream:
        return await _stream_reply(request, generation, reply)
    async with generation:
        return await _whole_reply(generation, reply)


async def _whole_reply(generation: Generation, reply: Reply) -> web.Response:
    async for step in generation.steps():
        reply.take(step)
    # Log-probabilities may be megabytes: they are written off the event loop.
    body = await asyncio.to_thread(reply.whole) if generation.has_logprobs else reply.whole()
    headers = {"Server-Timing": server_timing(generation.timings()), **reply.headers}
    return web.Response(body=body, content_type="application/json", headers=headers)


async def _stream_reply(request: web.Request, generation: Generation, reply: Reply) -> web.StreamResponse:
    """Stream the reply; an error after the first byte ends the stream with an error event."""
    stream = EventStream(request, request.app[CONTEXT].options.sse_keep_alive_interval, reply.headers)
    # A client that has gone is nobody to tell, whenever it went; leaving the generation aborts it.
    with contextlib.suppress(ConnectionError):
        try:
            async with stream.kept_alive(), generation:
                await _send_steps(stream, generation, reply)
        except ConnectionError:
            raise
        except Exception as error:
            if not stream.response.prepared:
                raise
            await stream.end(reply.fail(as_http_error(error)))
        else:
            await stream.end(reply.end())
    return stream.response


async def _send_steps(stream: EventStream, generation: Generation, reply: Reply) -> None:
    events = reply.begin()
    async for step in generation.steps():
        await stream.send([*events, *reply.events(step)])
        events = []
