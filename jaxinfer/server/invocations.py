"""POST /invocations and GET /ping: the names that Amazon SageMaker gives to the two endpoints it needs."""

import msgspec
from aiohttp import web

from jaxinfer.server.chat import chat_completions
from jaxinfer.server.completions import completions
from jaxinfer.server.errors import ApiError


async def invocations(request: web.Request) -> web.StreamResponse:
    """A chat where the body has `messages`, a completion where it has `prompt`."""
    try:
        names = msgspec.json.decode(await request.read(), type=dict[str, msgspec.Raw]).keys()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return await completions(request)  # which says what is wrong with the body
    if "messages" in names:
        return await chat_completions(request)
    if "prompt" in names:
        return await completions(request)
    raise ApiError(400, "prompt: give either prompt or messages", param="prompt")
