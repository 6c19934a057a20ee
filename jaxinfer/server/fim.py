"""POST /v1/fim/completions, Mistral's: what stands between a prompt and a suffix, in the form of a chat's answer."""

from aiohttp import web

from jaxinfer.server.body import receive
from jaxinfer.server.chat_reply import ChatReply
from jaxinfer.server.context import CONTEXT, caller_of, reply_id
from jaxinfer.server.stream import send_reply
from jaxinfer.serving.bodies.chat_schema import ChatBody
from jaxinfer.serving.requests.fim import FIM, common_fields
from jaxinfer.serving.requests.params import check_fim
from jaxinfer.text.answer import AnswerFormat


async def fim_completions(request: web.Request) -> web.StreamResponse:
    """Fills in the middle; goes on to the end of the context by default."""
    context = request.app[CONTEXT]
    received = await receive(request, FIM)
    body = received.body
    context.side.check(body)
    check_fim(body)
    name = reply_id("fim", request, body)
    ready = await FIM.prepare(body, context.side, received.ready)
    (prompt,) = ready.prompts
    generation = context.generation([prompt.token_ids], ready.params, body, caller_of(request))
    answer = ChatBody(messages=[], **common_fields(body))
    reply = ChatReply(name, context, answer, prompt, AnswerFormat(), generation)
    return await send_reply(request, body, generation, reply)
