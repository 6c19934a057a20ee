"""POST /invocations and GET /ping: the names that Amazon SageMaker gives to the two endpoints it needs."""

from aiohttp import web

from jaxinfer.server.body import receive
from jaxinfer.server.chat import answer_chat
from jaxinfer.server.completions import answer_completion
from jaxinfer.serving.bodies.chat_schema import ChatBody
from jaxinfer.serving.requests.invocations import INVOCATIONS


async def invocations(request: web.Request) -> web.StreamResponse:
    """A chat where the body has `messages`, a completion where it has `prompt`."""
    received = await receive(request, INVOCATIONS)
    if isinstance(received.body, ChatBody):
        return await answer_chat(request, received)
    return await answer_completion(request, received)
