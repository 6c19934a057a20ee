"""POST /v1/completions."""

from aiohttp import web

from jaxinfer.server.body import Received, receive
from jaxinfer.server.completion_reply import CompletionReply
from jaxinfer.server.context import CONTEXT, caller_of, reply_id
from jaxinfer.server.stream import send_reply
from jaxinfer.serving.bodies.schema import CompletionBody
from jaxinfer.serving.requests.completions import COMPLETIONS


async def completions(request: web.Request) -> web.StreamResponse:
    """Continues texts, or token ids."""
    return await answer_completion(request, await receive(request, COMPLETIONS))


async def answer_completion(request: web.Request, received: Received[CompletionBody]) -> web.StreamResponse:
    """Answers a body that was received."""
    context, body = request.app[CONTEXT], received.body
    context.side.check(body)
    name = reply_id("cmpl", request, body)
    ready = await COMPLETIONS.prepare(body, context.side, received.ready)
    generation = context.generation(
        [prompt.token_ids for prompt in ready.prompts], ready.params, body, caller_of(request)
    )
    reply = CompletionReply(name, context, body, ready.prompts, generation)
    return await send_reply(request, body, generation, reply)
