"""Responses: OpenAI's newer form of chats. A body becomes a chat's, which chats' own functions check and prepare."""

from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from jaxinfer.serving.bodies.chat_schema import ChatBody, Message
from jaxinfer.serving.bodies.responses_schema import ResponsesBody
from jaxinfer.serving.bodies.schema import GenerateBody
from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.requests.chat import CHAT
from jaxinfer.serving.requests.endpoint import Endpoint, ModelSide, Prepared, has_no_effect
from jaxinfer.serving.requests.response_items import chat_messages
from jaxinfer.serving.requests.response_tools import (
    chat_tool_choice,
    chat_tools,
    hosted_types,
    offered_tools,
    tool_places,
)
from jaxinfer.serving.requests.response_words import Words

LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that asks for log-probabilities."""

_REFUSED = ("background", "conversation", "prompt", "context_management")
"""Fields of OpenAI's schema that are not supported."""

_OTHER_NAMES = {"max_tokens": "max_output_tokens", "response_format": "text.format"}
"""Fields of the other endpoints that have another name here."""

_ELSEWHERE = ("prompt_logprobs", "return_token_ids")
"""Fields of the other endpoints for which this one's reply has no place."""


class ResponsesChat(NamedTuple):
    """A chat, and the words of the request that it is made of."""

    body: ChatBody
    words: Words


def as_chat(body: ResponsesBody) -> ResponsesChat:
    """The chat that a request is. Raises RequestError or ParameterError."""
    made = chat_messages(body.instructions, body.input)
    return _chat(body, made.messages, made.places)


def without_messages(body: ResponsesBody) -> ResponsesChat:
    """The chat that a request is, but for its messages. Raises RequestError."""
    return _chat(body, [], {})


def _chat(body: ResponsesBody, messages: list[Message], places: dict[str, str]) -> ResponsesChat:
    offered = offered_tools(body.tools)
    chat = ChatBody(
        messages=messages,
        tools=chat_tools(offered),
        tool_choice=chat_tool_choice(body.tool_choice, offered),
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
        chat_template_kwargs=body.chat_template_kwargs,
        logprobs=wants_logprobs(body) or None,
        top_logprobs=body.top_logprobs if wants_logprobs(body) else None,
        **_common_fields(body),
    )
    return ResponsesChat(chat, Words({**tool_places(offered), **places}))


def _common_fields(body: ResponsesBody) -> dict[str, Any]:
    """Return the fields that it has in common with the other endpoints."""
    common = {name: getattr(body, name) for name in GenerateBody.__struct_fields__}
    common["response_format"] = None if body.text is None else body.text.format
    return common


def wants_logprobs(body: ResponsesBody) -> bool:
    """Return whether the reply has log-probabilities."""
    return LOGPROBS in (body.include or ())


def _check(body: ResponsesBody, side: ModelSide) -> list[str]:
    _check_fields(body)
    chat = without_messages(body)
    with chat.words.errors():
        ignored = [chat.words.own(name) for name in CHAT.check(chat.body, side)]
    refuses = side.options.unknown_fields == "refuse"
    hosted = hosted_types(body.tools)
    if hosted and refuses:
        where, kind = next(iter(hosted.items()))
        raise has_no_effect(where, f"there is no tool of type {kind[:64]!r} on this server")
    if body.truncation == "auto" and refuses:
        raise has_no_effect("truncation", "nothing of a prompt that is too long is dropped")
    ignored += [f"tools.{kind}" for kind in dict.fromkeys(hosted.values())]
    return ignored + ["truncation"] * (body.truncation == "auto")


def _check_fields(body: ResponsesBody) -> None:
    for name in _REFUSED:
        if getattr(body, name):
            raise RequestError(f"{name} is not supported yet", param=name, code="unsupported_parameter")
    for name, ours in _OTHER_NAMES.items():
        if getattr(body, name) is not None:
            raise RequestError(f"{name}: is called {ours} here", param=name, code="unsupported_parameter")
    for name in _ELSEWHERE:
        if getattr(body, name):
            raise RequestError(f"{name}: is not part of a response", param=name, code="unsupported_parameter")
    if body.n not in (None, 1):
        raise RequestError(f"n: {body.n} is not supported; a response is one answer", param="n")
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        message = f"max_output_tokens: {body.max_output_tokens} must be at least 1"
        raise RequestError(message, param="max_output_tokens")
    _check_metadata(body.metadata or {})
    if body.top_logprobs and not wants_logprobs(body):
        message = f'top_logprobs: needs "{LOGPROBS}" in include'
        raise RequestError(message, param="top_logprobs")


def _check_metadata(metadata: dict[str, Any]) -> None:
    """Raises RequestError for more than OpenAI takes: replies repeat it, and the store keeps it."""
    short = all(len(key) <= 64 and isinstance(value, str) and len(value) <= 512 for key, value in metadata.items())
    if len(metadata) > 16 or not short:
        message = "metadata: at most 16 texts of 512 characters are allowed, with names of 64"
        raise RequestError(message, param="metadata")


async def _prepare(body: ResponsesBody, side: ModelSide) -> Prepared:
    chat = as_chat(body)
    with chat.words.errors():
        ((request, text),) = await CHAT.prepare(chat.body, side)
    if body.max_output_tokens is None:
        return [(request, text)]
    # More than the context leaves is no error: agents ask for as much as the model can write at most.
    room = side.info.max_model_len - len(request.prompt_token_ids)
    sampling = replace(request.sampling, max_tokens=min(body.max_output_tokens, room))
    return [(replace(request, sampling=sampling), text)]


def _slim(body: ResponsesBody) -> ResponsesBody:
    # The reply repeats the rest, also what has no effect.
    return msgspec.structs.replace(body, input="", chat_template_kwargs=None)


def _as_openai(body: ResponsesBody) -> ChatBody:
    return without_messages(body).body


RESPONSES = Endpoint("responses", ResponsesBody, _check, _prepare, _slim, _as_openai)
