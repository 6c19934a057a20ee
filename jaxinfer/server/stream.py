"""The frame of a reply, whole or streamed: a stream is opened, tells usage, and ends well or badly."""

import asyncio
import contextlib
from collections.abc import Iterable

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from jaxinfer.server.context import CONTEXT
from jaxinfer.server.errors import as_http_error, error_body
from jaxinfer.server.keep_alive import KeepAlive
from jaxinfer.server.reply import Reply
from jaxinfer.serving.bodies.schema import GenerateBody, StreamOptions
from jaxinfer.serving.generation import Generation
from jaxinfer.serving.usage import Usage, server_timing

_encode = msgspec.json.Encoder().encode

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class EventStream:
    """A response of server-sent events, each of them JSON.

    Status and headers go out with the first event or comment: an error before is an HTTP error, with its own status.
    keep_alive: seconds of silence until a comment; 0: none.
    """

    def __init__(self, request: web.Request, keep_alive: float) -> None:
        self.response = web.StreamResponse(headers=_HEADERS)
        self._request = request
        self._writer = KeepAlive(keep_alive, self._write)

    async def _write(self, data: bytes) -> None:
        await self.response.prepare(self._request)  # without effect from the second time on
        await self.response.write(data)

    async def send(self, events: Iterable[msgspec.Struct]) -> None:
        """Sends events in one write; waits while the client is slow."""
        data = b"".join(b"data: " + _encode(event) + b"\n\n" for event in events)
        if data:
            await self._writer.send(data)

    def kept_alive(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Send comments until the block ends, whenever the stream is silent."""
        return self._writer.running()

    async def fail(self, error: Exception) -> None:
        """Ends the stream with an error event; no `[DONE]` follows. Raises the error if nothing was sent yet."""
        if not self.response.prepared:
            raise error
        await self.response.write(b"data: " + error_body(as_http_error(error)) + b"\n\n")
        await self.response.write_eof()

    async def done(self) -> None:
        """Ends a stream that is complete."""
        await self._write(b"data: [DONE]\n\n")
        await self.response.write_eof()


async def send_reply(
    request: web.Request, body: GenerateBody, generation: Generation, reply: Reply
) -> web.StreamResponse:
    """Submits a generation and answers, in a stream where the body asks for one."""
    if body.stream:
        always_usage = request.app[CONTEXT].options.enable_force_include_usage
        return await _stream_reply(request, _options(body, always_usage), generation, reply)
    async with generation:
        return await _whole_reply(generation, reply)


async def _whole_reply(generation: Generation, reply: Reply) -> web.Response:
    parts = [choice async for step in generation.steps() for choice in reply.choices(step)]
    # Log-probabilities may be megabytes: they are written off the event loop.
    large = generation.has_logprobs
    body = await asyncio.to_thread(reply.whole, parts) if large else reply.whole(parts)
    headers = {"Server-Timing": server_timing(generation.timings())}
    return web.Response(body=body, content_type="application/json", headers=headers)


def _options(body: GenerateBody, always_usage: bool) -> StreamOptions:
    """Timings come with the usage; continuous usage needs `include_usage`, as in vLLM."""
    if always_usage:
        return StreamOptions(include_usage=True, continuous_usage_stats=True)
    asked = body.stream_options or StreamOptions()
    include = asked.include_usage or body.wants_timings
    return StreamOptions(include_usage=include, continuous_usage_stats=include and asked.continuous_usage_stats)


async def _stream_reply(
    request: web.Request, options: StreamOptions, generation: Generation, reply: Reply
) -> web.StreamResponse:
    """Stream the reply; an error after the first byte ends the stream with an error event."""
    events = EventStream(request, request.app[CONTEXT].options.sse_keep_alive_interval)
    # A client that has gone is nobody to tell, whenever it went; leaving the generation aborts it.
    with contextlib.suppress(ConnectionError):
        try:
            async with events.kept_alive(), generation:
                await _send_chunks(events, options, generation, reply)
        except ConnectionError:
            raise
        except Exception as error:
            await events.fail(error)
        else:
            await events.done()
    return events.response


async def _send_chunks(events: EventStream, options: StreamOptions, generation: Generation, reply: Reply) -> None:
    chunks = [reply.chunk([choice], _usage(options, reply)) for choice in reply.first()]  # sent with the first step's
    async for step in generation.steps():
        chunks += [reply.chunk([choice], _usage(options, reply)) for choice in reply.choices(step)]
        await events.send(chunks)
        chunks = []
    if options.include_usage:
        await events.send([reply.chunk([], reply.usage())])


def _usage(options: StreamOptions, reply: Reply) -> Usage | UnsetType | None:
    if options.continuous_usage_stats:
        return reply.usage()
    # OpenAI's chunks say `usage: null` until the last one tells it.
    return None if options.include_usage else UNSET
