"""POST /invocations and GET /ping: the names that Amazon SageMaker gives to the two endpoints it needs."""

from typing import Any

import msgspec
from aiohttp import web

from jaxinfer.server.body import receive
from jaxinfer.server.chat import CHAT, answer_chat
from jaxinfer.server.chat_schema import ChatBody
from jaxinfer.server.completions import COMPLETIONS, answer_completion
from jaxinfer.server.endpoint import Choice, Endpoint
from jaxinfer.server.errors import ApiError


async def invocations(request: web.Request) -> web.StreamResponse:
    """A chat where the body has `messages`, a completion where it has `prompt`."""
    received = await receive(request, INVOCATIONS)
    if isinstance(received.body, ChatBody):
        return await answer_chat(request, received)
    return await answer_completion(request, received)


def _choose(data: bytes | bytearray) -> Endpoint[Any]:
    try:
        names = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).keys()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return COMPLETIONS  # which says what is wrong with the body
    if "messages" in names:
        return CHAT
    if "prompt" in names:
        return COMPLETIONS
    raise ApiError(400, "prompt: give either prompt or messages", param="prompt")


INVOCATIONS = Choice("invocations", _choose, (CHAT, COMPLETIONS))
