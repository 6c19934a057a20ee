"""Chats: conversations that the model's template renders."""

from dataclasses import replace

import msgspec
import numpy as np

from jaxinfer.engine.types import NO_PREDICTIONS
from jaxinfer.errors import ParameterError
from jaxinfer.serving.bodies.chat_schema import ChatBody, Function, Message, Tool
from jaxinfer.serving.requests.conversation import echoed_text, offered_tools, render, tool_schemas
from jaxinfer.serving.requests.endpoint import (
    Endpoint,
    ModelSide,
    Prepared,
    as_it_is,
    check_common,
    has_no_effect,
    without_effect_dropped,
)
from jaxinfer.serving.requests.params import chat_params, engine_request, most_tokens
from jaxinfer.serving.requests.structured import constrained_answer
from jaxinfer.text.answer.calls.argument_types import types_alone
from jaxinfer.text.tokenizer.bad_words import with_bad_token_ids


def _check(body: ChatBody, side: ModelSide) -> list[str]:
    check_common(body, side)
    if body.prediction is not None and body.prediction.text and not side.info.takes_predictions:
        raise ParameterError("prediction", NO_PREDICTIONS)
    effort, template = body.reasoning_effort, side.text.chat_template
    if effort is None or template.takes_thinking or (effort != "none" and template.takes_effort):
        return []
    if side.options.unknown_fields == "refuse":
        raise has_no_effect("reasoning_effort", "the model's chat template reads nothing that it could turn")
    return ["reasoning_effort"]


async def _prepare(body: ChatBody, side: ModelSide) -> Prepared:
    form, tokenizer = side.answer_form.offering(tool_schemas(body)), side.text.tokenizer
    params = form.params(chat_params(body, side.text.defaults, side.info), tokenizer)
    params = with_bad_token_ids(params, side.text.tokenizer)
    tools = offered_tools(body, side.answer_form, side.options)
    rendered = await render(body, tools, side.text, most_tokens(body, side.info))
    params = constrained_answer(body, params, form, tokenizer, rendered.text, has_tools=bool(tools))
    request = engine_request(rendered.token_ids, params, side.info, body, "messages")
    return [(replace(request, prediction=await _prediction(body, side)), rendered.text)]


async def _prediction(body: ChatBody, side: ModelSide) -> np.ndarray:
    """Token ids of the prediction, int32, in which control tokens are text, as in messages."""
    if body.prediction is None:
        return np.zeros(0, np.int32)
    encode, params = side.text.encode_async, ["prediction.content"]
    (ids,) = await encode([body.prediction.text], add_special_tokens=False, params=params, parse_special=False)
    return np.array(ids, np.int32)


def _slim(body: ChatBody) -> ChatBody:
    # An echo repeats the last message.
    echoed = body.messages[-1:] if body.echo else []
    return msgspec.structs.replace(
        without_effect_dropped(body),
        messages=[Message(role=message.role, content=echoed_text(body)) for message in echoed],
        chat_template_kwargs=None,
        prediction=None,
        tools=[_slim_tool(tool) for tool in body.tools] if body.tools else None,
    )


def _slim_tool(tool: Tool) -> Tool:
    """Keep of a tool what a reply needs to know: the types of its arguments."""
    parameters = types_alone(tool.function.parameters or {})
    return Tool(type="function", function=Function(name=tool.function.name, parameters=parameters))


CHAT = Endpoint("chat", ChatBody, _check, _prepare, _slim, as_it_is)
