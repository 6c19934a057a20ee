"""POST /v1/chat/completions."""

from aiohttp import web

from jaxinfer.server.body import read_body
from jaxinfer.server.chat_reply import ChatReply
from jaxinfer.server.chat_schema import ChatBody
from jaxinfer.server.context import CONTEXT, reply_id, report_ignored
from jaxinfer.server.conversation import conversation, effort_is_ignored, offered_tools
from jaxinfer.server.generation import Generation
from jaxinfer.server.params import chat_params, fit_length, truncation
from jaxinfer.server.prompts import chat_prompt
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
    info, template = context.client.info, context.text.chat_template
    params = chat_params(body, context.text.defaults, info)
    if effort_is_ignored(body, template):
        report_ignored(request, "reasoning_effort", "the model's chat template reads nothing that it could turn")
    tools = offered_tools(body, context.answer_form, context.options)
    prompt = await chat_prompt(conversation(body, tools, template), context.text)
    prompt = prompt._replace(token_ids=truncation(body, params, info)(prompt.token_ids))
    given = {"max_completion_tokens": body.max_completion_tokens, "max_tokens": body.max_tokens}
    asked_by = next((field for field, value in given.items() if value is not None), None)
    params = fit_length(prompt.token_ids, params, info, param=prompt.param, asked_by=asked_by)
    generation = context.generation([prompt.token_ids], [params], body, request)
    form = context.answer_form._replace(tools=context.answer_form.tools and tools is not None)
    return ChatReply(name, context, body, prompt, form, generation), generation
