"""/v1/responses: OpenAI's newer form of chats, with responses that are stored for later requests."""

import asyncio
import uuid

import msgspec
from aiohttp import web

from jaxinfer.server.body import receive
from jaxinfer.server.context import API_KEY, CONTEXT, caller_of, reply_id
from jaxinfer.server.incoming import INCOMING
from jaxinfer.server.input_items import page_of_input
from jaxinfer.server.response_input import join_input
from jaxinfer.server.responses_reply import ResponsesReply
from jaxinfer.server.responses_schema import DeletedResponse
from jaxinfer.server.stream import send_reply
from jaxinfer.serving.bodies.responses_schema import ResponsesBody
from jaxinfer.serving.config import ServerConfig
from jaxinfer.serving.errors import ErrorKind, RequestError
from jaxinfer.serving.requests.endpoint import Prepared
from jaxinfer.serving.requests.responses import RESPONSES, ResponsesChat, without_messages
from jaxinfer.serving.response_store import Chunk, ResponseStore, StoredResponse
from jaxinfer.serving.tenant import tenant_of

STORE = web.AppKey("response_store", ResponseStore)


def make_store(options: ServerConfig) -> ResponseStore:
    """The store of one API process."""
    note = f"; each of the {options.api_workers} API processes knows its own only" if options.api_workers > 1 else ""
    return ResponseStore(options.max_stored_responses, options.max_stored_response_bytes, note)


async def create(request: web.Request) -> web.StreamResponse:
    """POST /v1/responses: answers items, after those of a stored response if it names one."""
    store = request.app[STORE]
    items, numbering = await join_input(
        request[INCOMING], store, _owner(request), request.app[CONTEXT].options.max_body_bytes
    )
    with numbering.errors(), store.reserved(items.size) as fits:
        items = items if fits else None  # while the response is made, only what is counted stays
        _, body, prepared = await receive(request, RESPONSES)
        prepared = await RESPONSES.prepare(body, request.app[CONTEXT].side) if prepared is None else prepared
        chat = without_messages(body)
        with chat.words.errors():
            return await _answer(request, body, chat, prepared, items)


async def _answer(
    request: web.Request, body: ResponsesBody, chat: ResponsesChat, prepared: Prepared, items: Chunk | None
) -> web.StreamResponse:
    context = request.app[CONTEXT]
    # A response is found by its id alone: the one that a client gives its request need not be its only one.
    name = f"resp_{uuid.uuid4().hex}"
    reply_id("resp", request, chat.body)
    ((made, text),) = prepared
    generation = context.generation([made], chat.body, caller_of(request))

    def keep(whole: bytes, output: list[bytes], ids: list[str]) -> None:
        if items is not None and body.store is not False:
            _keep(request, StoredResponse(name, whole, (), items, Chunk(tuple(output)), tuple(ids)), body)

    reply = ResponsesReply(name, context, body, chat, text, generation, keep)
    return await send_reply(request, generation, reply, stream=bool(body.stream))


def _keep(request: web.Request, made: StoredResponse, body: ResponsesBody) -> None:
    """Store a response behind its conversation, unless that has been dropped meanwhile."""
    store, owner = request.app[STORE], _owner(request)
    if body.previous_response_id is None:
        store.put(owner, made)
        return
    previous = store.get(owner, body.previous_response_id)
    if previous is not None:
        store.put(owner, made._replace(history=previous.conversation))


async def retrieve(request: web.Request) -> web.Response:
    """GET /v1/responses/{id}: a stored response. Its events are not stored."""
    if request.query.get("stream", "false") != "false":
        raise RequestError("stream: a stored response is not streamed", param="stream", code="unsupported_parameter")
    return web.Response(body=_stored(request).reply, content_type="application/json")


async def delete(request: web.Request) -> web.Response:
    """DELETE /v1/responses/{id}: forgets a response."""
    stored = _stored(request)
    request.app[STORE].delete(_owner(request), stored.id)
    return _json(DeletedResponse(stored.id))


async def cancel(request: web.Request) -> web.Response:
    """POST /v1/responses/{id}/cancel: an error, since none runs in the background."""
    stored = _stored(request)
    message = f"{stored.id} was not made with background=true; close the connection to cancel a response"
    raise RequestError(message, code="not_cancellable")


async def input_items(request: web.Request) -> web.Response:
    """GET /v1/responses/{id}/input_items: all items that a response answers, its history included, in pages."""
    stored, query = _stored(request), request.query
    after, limit, order = query.get("after"), query.get("limit", "20"), query.get("order", "desc")
    return _json(await asyncio.to_thread(page_of_input, stored, after=after, limit=limit, order=order))


def _stored(request: web.Request) -> StoredResponse:
    """The response that a path names. Raises RequestError if its owner has none of this id."""
    name = request.match_info["id"]
    found = request.app[STORE].get(_owner(request), name)
    if found is None:
        message = f"a response {name[:64]!r} is not found{request.app[STORE].note}"
        raise RequestError(message, kind=ErrorKind.NOT_FOUND, code="response_not_found")
    return found


def _owner(request: web.Request) -> str:
    key, _ = tenant_of(request.get(API_KEY, ""), None)
    return key


def _json(body: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
