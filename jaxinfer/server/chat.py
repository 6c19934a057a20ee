"""POST /v1/chat/completions."""

from aiohttp import web

from jaxinfer.server.body import Received, receive
from jaxinfer.server.chat_reply import ChatReply
from jaxinfer.server.context import CONTEXT, caller_of, reply_id, report_ignored
from jaxinfer.server.stream import send_reply
from jaxinfer.serving.bodies.chat_schema import ChatBody
from jaxinfer.serving.requests.chat import CHAT, WHY_EFFORT_IS_IGNORED, check_chat
from jaxinfer.serving.requests.conversation import effort_is_ignored


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answers a conversation."""
    return await answer_chat(request, await receive(request, CHAT))


async def answer_chat(request: web.Request, received: Received[ChatBody]) -> web.StreamResponse:
    """Answers a body that was received."""
    context, body = request.app[CONTEXT], received.body
    check_chat(body, context.side)
    name = reply_id("chatcmpl", request, body)
    if effort_is_ignored(body, context.text.chat_template):
        report_ignored(request, "reasoning_effort", WHY_EFFORT_IS_IGNORED)
    ready = await CHAT.prepare(body, context.side, received.ready)
    (prompt,) = ready.prompts
    generation = context.generation([prompt.token_ids], ready.params, body, caller_of(request))
    form = context.answer_form._replace(tools=context.answer_form.tools and ready.tools)
    return await send_reply(request, body, generation, ChatReply(name, context, body, prompt, form, generation))
