"""POST /v1/chat/completions."""

from aiohttp import web

from jaxinfer.server.body import read_body
from jaxinfer.server.chat_reply import ChatReply
from jaxinfer.server.chat_schema import ChatBody
from jaxinfer.server.context import CONTEXT, reply_id
from jaxinfer.server.conversation import conversation, offered_tools
from jaxinfer.server.generation import Generation
from jaxinfer.server.params import chat_params, fit_length
from jaxinfer.server.prompts import chat_prompt, truncated
from jaxinfer.server.stream import send_reply


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answers a conversation."""
    context = request.app[CONTEXT]
    body = await read_body(request, ChatBody)
    context.check_model(body.model)
    name = reply_id("chatcmpl", request, body)
    reply, generation = await _prepare(name, request, body)
    return await send_reply(request, body, generation, reply)


async def _prepare(name: str, request: web.Request, body: ChatBody) -> tuple[ChatReply, Generation]:
    context = request.app[CONTEXT]
    info = context.client.info
    params = chat_params(body, context.text.defaults, info)
    tools = offered_tools(body, context.answer_form, context.options)
    prompt = await chat_prompt(conversation(body, tools, context.text.chat_template), context.text)
    prompt = prompt._replace(token_ids=truncated(prompt.token_ids, body.truncate_prompt_tokens))
    said = {"max_completion_tokens": body.max_completion_tokens, "max_tokens": body.max_tokens}
    asked_by = next((field for field, value in said.items() if value is not None), None)
    params = fit_length(prompt.token_ids, params, info, param=prompt.param, asked_by=asked_by)
    generation = context.generation([prompt.token_ids], [params], body, request)
    form = context.answer_form._replace(tools=context.answer_form.tools and tools is not None)
    return ChatReply(name, context, body, prompt, form, generation), generation
