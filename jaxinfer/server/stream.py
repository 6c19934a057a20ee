"""The frame of a reply, whole or streamed: a stream is opened, tells usage, and ends well or badly."""

import asyncio
import contextlib
from typing import Any, Protocol

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from jaxinfer.server.errors import as_api_error
from jaxinfer.server.generation import Generation, Step
from jaxinfer.server.responses import Usage
from jaxinfer.server.schema import StreamOptions
from jaxinfer.server.sse import EventStream


class Reply(Protocol):
    """What an endpoint makes of a generation."""

    def first(self) -> list[Any]:
        """Choices of the first chunks, before any token."""
        ...

    def choices(self, step: Step) -> list[Any]:
        """What a step adds to each choice."""
        ...

    def chunk(self, choices: list[Any], usage: Usage | UnsetType | None) -> msgspec.Struct:
        """An event."""
        ...

    def whole(self, parts: list[Any], generation: Generation) -> bytes:
        """The whole reply from all choices of all steps, as JSON."""
        ...


async def whole_reply(generation: Generation, reply: Reply, *, large: bool) -> web.Response:
    """Answers once a generation that was submitted has ended. large: written off the event loop."""
    parts = [choice async for step in generation.steps() for choice in reply.choices(step)]
    body = await asyncio.to_thread(reply.whole, parts, generation) if large else reply.whole(parts, generation)
    return web.Response(body=body, content_type="application/json")


async def stream_reply(
    request: web.Request, options: StreamOptions | None, generation: Generation, reply: Reply
) -> web.StreamResponse:
    """Streams a generation that was submitted. What fails after the first byte ends the stream with an error event."""
    events = EventStream()
    # A client that has gone is nobody to tell, whenever it went; leaving the generation aborts it.
    with contextlib.suppress(ConnectionError):
        await events.open(request)
        try:
            await _send_chunks(events, options, generation, reply)
        except ConnectionError:
            raise
        except Exception as error:
            await events.fail(as_api_error(error))
        else:
            await events.done()
    return events.response


async def _send_chunks(
    events: EventStream, options: StreamOptions | None, generation: Generation, reply: Reply
) -> None:
    await events.send([reply.chunk([choice], _usage(options, generation)) for choice in reply.first()])
    async for step in generation.steps():
        await events.send([reply.chunk([choice], _usage(options, generation)) for choice in reply.choices(step)])
    if options is not None and options.include_usage:
        await events.send([reply.chunk([], generation.usage())])


def _usage(options: StreamOptions | None, generation: Generation) -> Usage | UnsetType | None:
    if options is not None and options.continuous_usage_stats:
        return generation.usage()
    # OpenAI's chunks say `usage: null` until the last one tells it.
    return None if options is not None and options.include_usage else UNSET
