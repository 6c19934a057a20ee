"""Chats: conversations that the model's template renders."""

import msgspec

from jaxinfer.serving.bodies.chat_schema import ChatBody, Message
from jaxinfer.serving.requests.conversation import conversation, echoed_text, effort_is_ignored, offered_tools
from jaxinfer.serving.requests.endpoint import Endpoint, ModelSide, Ready, has_no_effect, without_effect_dropped
from jaxinfer.serving.requests.params import chat_params, fit_length, truncation
from jaxinfer.serving.requests.prompts import Prompt, chat_prompt

WHY_EFFORT_IS_IGNORED = "the model's chat template reads nothing that it could turn"


async def _prepare(body: ChatBody, side: ModelSide, made: Ready | None) -> Ready:
    check_chat(body, side)
    params = chat_params(body, side.text.defaults, side.info)
    made = await _prompt(body, side) if made is None else made
    (prompt,) = made.prompts
    prompt = prompt._replace(token_ids=truncation(body, params, side.info)(prompt.token_ids))
    given = {"max_completion_tokens": body.max_completion_tokens, "max_tokens": body.max_tokens}
    asked_by = next((field for field, value in given.items() if value is not None), None)
    fitted = fit_length(prompt.token_ids, params, side.info, param=prompt.param, asked_by=asked_by)
    return Ready([prompt], [fitted], made.tools)


def check_chat(body: ChatBody, side: ModelSide) -> None:
    """Raises RequestError for what is wrong whatever the prompt is."""
    side.check(body)
    if side.options.unknown_fields == "refuse" and effort_is_ignored(body, side.text.chat_template):
        raise has_no_effect("reasoning_effort", WHY_EFFORT_IS_IGNORED)


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
