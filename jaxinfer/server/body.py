"""Reads a request's body; refuses, by name, what is wrong or not supported."""

from typing import Any, TypeVar

import msgspec
from aiohttp import web

from jaxinfer.server.context import API_KEY, CONTEXT, keep_ignored
from jaxinfer.server.incoming import INCOMING, IncomingBody
from jaxinfer.serving.bodies.decode import decode_body
from jaxinfer.serving.bodies.structure import check_structure
from jaxinfer.serving.requests.endpoint import Choice, Endpoint, Prepared, TextEndpoint
from jaxinfer.serving.workers.jobs import BodyAnswer, Requests

Wire = TypeVar("Wire", bound=msgspec.Struct)


async def receive(request: web.Request, endpoint: Endpoint[Any] | Choice) -> tuple[Endpoint[Any], Any, Prepared | None]:
    """An endpoint, the chosen one of several, its checked body, and what a worker prepared where the body was large.

    Fields without effect are kept for the header that reports them. Raises RequestError.
    """
    incoming = request[INCOMING]
    if incoming.large:
        reply = await _read_elsewhere(request, endpoint.name, incoming)
        assert isinstance(reply, Requests)
        among = endpoint.among if isinstance(endpoint, Choice) else (endpoint,)
        chosen = next(one for one in among if one.name == reply.endpoint)
        return chosen, msgspec.json.decode(reply.body, type=chosen.kind), reply.prepared()
    chosen = endpoint.choose(incoming.data) if isinstance(endpoint, Choice) else endpoint
    body = _decoded(request, incoming, chosen.kind)
    keep_ignored(request, chosen.check(body, request.app[CONTEXT].side))
    return chosen, body, None


async def receive_answer(request: web.Request, endpoint: TextEndpoint[Wire]) -> web.Response:
    """The answer of an endpoint that needs no engine. Raises RequestError."""
    incoming = request[INCOMING]
    if incoming.large:
        reply = await _read_elsewhere(request, endpoint.name, incoming)
        assert isinstance(reply, BodyAnswer)
        answer = reply.answer
    else:
        answer = await endpoint.answer(_decoded(request, incoming, endpoint.kind), request.app[CONTEXT].side)
    return web.Response(body=answer, content_type="application/json")


async def _read_elsewhere(request: web.Request, name: str, incoming: IncomingBody) -> Requests | BodyAnswer:
    context = request.app[CONTEXT]
    reply = await context.workers.read(name, incoming.data, context.client.info, key=request.get(API_KEY, ""))
    incoming.forget()
    keep_ignored(request, reply.ignored)
    return reply


def _decoded(request: web.Request, incoming: IncomingBody, kind: type[Wire]) -> Wire:
    check_structure(incoming.data)
    body, ignored = decode_body(incoming.data, kind, request.app[CONTEXT].unknown_fields)
    incoming.forget()
    keep_ignored(request, ignored)
    return body
