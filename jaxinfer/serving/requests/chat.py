"""Chats: conversations that the model's template renders."""

import msgspec

from jaxinfer.serving.bodies.chat_schema import ChatBody, Function, Message, Tool
from jaxinfer.serving.requests.conversation import echoed_text, offered_tools, render
from jaxinfer.serving.requests.endpoint import (
    Endpoint,
    ModelSide,
    Prepared,
    check_common,
    has_no_effect,
    without_effect_dropped,
)
from jaxinfer.serving.requests.params import chat_params, engine_request
from jaxinfer.serving.requests.structured import constrained_answer
from jaxinfer.text.bad_words import with_bad_token_ids


def _check(body: ChatBody, side: ModelSide) -> list[str]:
    check_common(body, side)
    effort, template = body.reasoning_effort, side.text.chat_template
    if effort is None or template.takes_thinking or (effort != "none" and template.takes_effort):
        return []
    if side.options.unknown_fields == "refuse":
        raise has_no_effect("reasoning_effort", "the model's chat template reads nothing that it could turn")
    return ["reasoning_effort"]


async def _prepare(body: ChatBody, side: ModelSide) -> Prepared:
    params = side.answer_form.params(chat_params(body, side.text.defaults, side.info))
    params = with_bad_token_ids(params, side.text.tokenizer)
    tools = offered_tools(body, side.answer_form, side.options)
    rendered = await render(body, tools, side.text)
    params = constrained_answer(body, params, side, rendered.text, has_tools=bool(tools))
    return [(engine_request(rendered.token_ids, params, side.info, body, "messages"), rendered.text)]


def _slim(body: ChatBody) -> ChatBody:
    # An echo repeats the last message. Of tools, a reply needs to know whether there are any.
    echoed = body.messages[-1:] if body.echo else []
    return msgspec.structs.replace(
        without_effect_dropped(body),
        messages=[Message(role=message.role, content=echoed_text(body)) for message in echoed],
        chat_template_kwargs=None,
        tools=[Tool(type="function", function=Function(name=""))] if body.tools else None,
    )


CHAT = Endpoint("chat", ChatBody, _check, _prepare, _slim)
