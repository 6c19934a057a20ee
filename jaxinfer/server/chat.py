"""POST /v1/chat/completions."""

import msgspec
from aiohttp import web

from jaxinfer.server.body import Received, receive
from jaxinfer.server.chat_reply import ChatReply, echoed_text
from jaxinfer.server.chat_schema import ChatBody, Message
from jaxinfer.server.context import CONTEXT, has_no_effect, reply_id, report_ignored
from jaxinfer.server.conversation import conversation, effort_is_ignored, offered_tools
from jaxinfer.server.endpoint import Endpoint, ModelSide, Ready, without_effect_dropped
from jaxinfer.server.params import chat_params, fit_length, truncation
from jaxinfer.server.prompts import Prompt, chat_prompt
from jaxinfer.server.stream import send_reply

_WHY_IGNORED = "the model's chat template reads nothing that it could turn"


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answers a conversation."""
    return await answer_chat(request, await receive(request, CHAT))


async def answer_chat(request: web.Request, received: Received[ChatBody]) -> web.StreamResponse:
    """Answers a body that was received."""
    context, body = request.app[CONTEXT], received.body
    _check(body, context.side)
    name = reply_id("chatcmpl", request, body)
    if effort_is_ignored(body, context.text.chat_template):
        report_ignored(request, "reasoning_effort", _WHY_IGNORED)
    ready = await _prepare(body, context.side, received.ready)
    (prompt,) = ready.prompts
    generation = context.generation([prompt.token_ids], ready.params, body, request)
    form = context.answer_form._replace(tools=context.answer_form.tools and ready.tools)
    return await send_reply(request, body, generation, ChatReply(name, context, body, prompt, form, generation))


async def _prepare(body: ChatBody, side: ModelSide, made: Ready | None) -> Ready:
    _check(body, side)
    params = chat_params(body, side.text.defaults, side.info)
    made = await _prompt(body, side) if made is None else made
    (prompt,) = made.prompts
    prompt = prompt._replace(token_ids=truncation(body, params, side.info)(prompt.token_ids))
    given = {"max_completion_tokens": body.max_completion_tokens, "max_tokens": body.max_tokens}
    asked_by = next((field for field, value in given.items() if value is not None), None)
    fitted = fit_length(prompt.token_ids, params, side.info, param=prompt.param, asked_by=asked_by)
    return Ready([prompt], [fitted], made.tools)


def _check(body: ChatBody, side: ModelSide) -> None:
    side.check(body)
    if side.options.unknown_fields == "refuse" and effort_is_ignored(body, side.text.chat_template):
        raise has_no_effect("reasoning_effort", _WHY_IGNORED)


async def _prompt(body: ChatBody, side: ModelSide) -> Ready:
    template = side.text.chat_template
    tools = offered_tools(body, side.answer_form, side.options)
    prompt: Prompt = await chat_prompt(conversation(body, tools, template), side.text)
    return Ready([prompt], [], tools is not None)


def _slim(body: ChatBody) -> ChatBody:
    # An echo repeats the last message.
    echoed = body.messages[-1:] if body.echo else []
    return msgspec.structs.replace(
        without_effect_dropped(body),
        messages=[Message(role=message.role, content=echoed_text(body)) for message in echoed],
        chat_template_kwargs=None,
        tools=None,
        tool_choice=None,
    )


CHAT = Endpoint("chat", ChatBody, _prepare, _slim)
