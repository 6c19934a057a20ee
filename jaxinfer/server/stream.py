"""The frame of a streamed reply: opens it, tells usage, and ends it well or badly."""

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


async def stream_reply(
    request: web.Request, options: StreamOptions | None, generation: Generation, reply: Reply
) -> web.StreamResponse:
    """Streams a generation that was submitted. What fails after the first byte ends the stream with an error event."""
    events = EventStream()
    await events.open(request)
    try:
        await events.send([reply.chunk([choice], _usage(options, generation)) for choice in reply.first()])
        async for step in generation.steps():
            await events.send([reply.chunk([choice], _usage(options, generation)) for choice in reply.choices(step)])
        if options is not None and options.include_usage:
            await events.send([reply.chunk([], generation.usage())])
    except ConnectionError:
        pass  # the client has gone: there is nobody to tell, and leaving the generation aborts it
    except Exception as error:
        await events.fail(as_api_error(error))
    else:
        await events.done()
    return events.response


def _usage(options: StreamOptions | None, generation: Generation) -> Usage | UnsetType | None:
    if options is not None and options.continuous_usage_stats:
        return generation.usage()
    # OpenAI's chunks say `usage: null` until the last one tells it.
    return None if options is not None and options.include_usage else UNSET
