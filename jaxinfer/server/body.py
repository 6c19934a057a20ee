"""Reads a request's body; refuses, by name, what is wrong or not supported."""

from typing import Generic, TypeVar

import msgspec
from aiohttp import web

from jaxinfer.server.context import CONTEXT, IGNORED_FIELDS
from jaxinfer.server.incoming import INCOMING, IncomingBody
from jaxinfer.serving.bodies.decode import decode_body
from jaxinfer.serving.bodies.structure import check_structure
from jaxinfer.serving.requests.endpoint import Choice, Endpoint, Ready, TextEndpoint
from jaxinfer.serving.workers.jobs import Answer, Prompts, unpack_prompt

Wire = TypeVar("Wire", bound=msgspec.Struct)


class Received(Generic[Wire]):
    """A body. ready: what a worker made of it, where it was large; `body` is then without what that was made of."""

    def __init__(self, body: Wire, ready: Ready | None = None):
        self.body = body
        self.ready = ready


async def receive(request: web.Request, endpoint: Endpoint[Wire] | Choice) -> Received[Wire]:
    """The body of an endpoint; fields without effect are kept for the header that reports them. Raises RequestError."""
    incoming = request[INCOMING]
    if not incoming.large:
        chosen = endpoint.choose(incoming.data) if isinstance(endpoint, Choice) else endpoint
        return Received(_decoded(request, incoming, chosen.kind))
    reply = await _read_elsewhere(request, endpoint.name, incoming)
    assert isinstance(reply, Prompts)
    among = endpoint.among if isinstance(endpoint, Choice) else (endpoint,)
    kind = next(one.kind for one in among if one.name == reply.endpoint)
    prompts = [unpack_prompt(prompt) for prompt in reply.prompts]
    return Received(msgspec.json.decode(reply.body, type=kind), Ready(prompts, [], reply.tools))


async def receive_answer(request: web.Request, endpoint: TextEndpoint[Wire]) -> web.Response:
    """The answer of an endpoint that needs no engine. Raises RequestError."""
    incoming = request[INCOMING]
    if incoming.large:
        reply = await _read_elsewhere(request, endpoint.name, incoming)
        assert isinstance(reply, Answer)
        answer = reply.answer
    else:
        answer = await endpoint.answer(_decoded(request, incoming, endpoint.kind), request.app[CONTEXT].side)
    return web.Response(body=answer, content_type="application/json")


async def _read_elsewhere(request: web.Request, name: str, incoming: IncomingBody) -> Prompts | Answer:
    context = request.app[CONTEXT]
    reply = await context.workers.read(name, incoming.data, context.client.info)
    incoming.forget()
    _keep_ignored(request, reply.ignored)
    return reply


def _decoded(request: web.Request, incoming: IncomingBody, kind: type[Wire]) -> Wire:
    check_structure(incoming.data)
    body, ignored = decode_body(incoming.data, kind, request.app[CONTEXT].unknown_fields)
    incoming.forget()
    _keep_ignored(request, ignored)
    return body


def _keep_ignored(request: web.Request, names: list[str]) -> None:
    reported = request.app[CONTEXT].unknown_fields.report(names)
    if reported:
        request[IGNORED_FIELDS] = reported
