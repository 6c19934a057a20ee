"""Messages in Anthropic's form, which are checked and prepared as the chats that they are."""

import dataclasses
from typing import Any, NamedTuple

import msgspec

from jaxinfer.serving.bodies.chat_schema import ChatBody, Function, Tool
from jaxinfer.serving.bodies.messages_schema import (
    REFUSED,
    THREADS_REFUSED,
    CountTokensBody,
    MessageBody,
    MessagesBody,
    MetadataBody,
    ToolBody,
    ToolUseBlock,
)
from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.requests.chat import CHAT
from jaxinfer.serving.requests.conversation import offered_tools, render
from jaxinfer.serving.requests.endpoint import Endpoint, ModelSide, Prepared, TextEndpoint, has_no_effect
from jaxinfer.serving.requests.messages_conversation import Conversation
from jaxinfer.serving.requests.messages_errors import anthropics_name, in_anthropics_words
from jaxinfer.serving.tenant import USER_CHARS
from jaxinfer.text.answer.calls.argument_types import types_alone


class Translation(NamedTuple):
    """The chat that a body asks for. places: maps its fields to those of the body. left_out: fields without effect, and
    why they have none."""

    chat: ChatBody
    places: dict[str, str]
    left_out: dict[str, str]


def as_chat(body: MessagesBody) -> ChatBody:
    """The chat that a body asks for. Raises RequestError."""
    return _translated(body).chat


def _translated(body: CountTokensBody) -> Translation:
    """Raises RequestError for what a chat cannot have."""
    for name, neutral in REFUSED.items():
        value = getattr(body, name)
        if value is not None and value not in neutral:
            code = THREADS_REFUSED if name == "thread" else "unsupported_parameter"
            raise RequestError(f"{name} is not supported", param=name, code=code)
    if not body.messages:
        raise RequestError("messages: is empty", param="messages")
    conversation = Conversation(body.system, body.messages)
    tools = _tools(body.tools or [])
    left_out = {f"tools[{i}]": _NOT_OURS for i in range(len(body.tools or ())) if i not in tools}
    if left_out and not tools:
        message = "tools[0].type: tools that Anthropic defines or runs are not supported; those of type custom are"
        raise RequestError(message, param="tools[0].type", code="unsupported_parameter")
    places = {**conversation.places, **{f"tools[{k}]": f"tools[{i}]" for k, i in enumerate(tools)}}
    choice, thinking, output = body.tool_choice, body.thinking, body.output_config
    chat = ChatBody(
        messages=conversation.messages,
        model=body.model,
        tools=list(tools.values()) or None,
        tool_choice=_tool_choice(body),
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        thinking=None if thinking is None else thinking.type != "disabled",
        include_reasoning=None if thinking is None else thinking.display != "omitted",
        reasoning_effort=None if output is None else output.effort,
        response_format=_response_format(body, places),
        **_continuing(body.messages),
        **_sampling(body),
    )
    return Translation(chat, places, left_out)


def _tools(tools: list[ToolBody]) -> dict[int, Tool]:
    """The client's own tools, by their index in the body."""
    return {i: _tool(tool, f"tools[{i}]") for i, tool in enumerate(tools) if tool.type in (None, "custom")}


def _tool(tool: ToolBody, where: str) -> Tool:
    if tool.input_schema is None:
        raise RequestError(f"{where}.input_schema: is missing", param=f"{where}.input_schema")
    function = Function(name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict)
    return Tool(type="function", function=function)


def _tool_choice(body: CountTokensBody) -> str | dict[str, Any] | None:
    choice = body.tool_choice
    if choice is None or (choice.type == "auto" and not body.tools):
        return None
    if choice.type != "none" and not body.tools:
        raise RequestError(f"tool_choice: `{choice.type}` needs tools", param="tool_choice")
    if choice.type != "tool":
        return {"auto": "auto", "any": "required", "none": "none"}[choice.type]
    if choice.name is None:
        raise RequestError("tool_choice.name: is missing", param="tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}


def _response_format(body: CountTokensBody, places: dict[str, str]) -> dict[str, Any] | None:
    newer = None if body.output_config is None else body.output_config.format
    if newer is not None and body.output_format is not None:
        message = "output_format: is the older name of output_config.format; give one of them"
        raise RequestError(message, param="output_format")
    if body.output_format is not None:
        places |= dict.fromkeys(("response_format", "response_format.json_schema"), "output_format")
    given = newer or body.output_format
    return None if given is None else {"type": "json_schema", "json_schema": {"schema": given.schema}}


def _continuing(messages: list[MessageBody]) -> dict[str, Any]:
    """An answer continues the last message if the assistant wrote it."""
    if not messages or messages[-1].role != "assistant":
        return {}
    where, content = f"messages[{len(messages) - 1}]", messages[-1].content
    if not isinstance(content, str) and any(isinstance(block, ToolUseBlock) for block in content):
        message = f"{where}.content: the calls of the last message need tool_result blocks in a message of the user"
        raise RequestError(message, param=f"{where}.content")
    return {"continue_final_message": True, "add_generation_prompt": False}


def _sampling(body: CountTokensBody) -> dict[str, Any]:
    if not isinstance(body, MessagesBody):
        return {}
    same = {name: getattr(body, name) for name in ("max_tokens", "temperature", "top_p", "top_k", "stream")}
    return {**same, "stop": body.stop_sequences, "user": None if body.metadata is None else body.metadata.user_id}


def _check(body: MessagesBody, side: ModelSide) -> list[str]:
    side.check_model(body.model)
    translation = _translated(body)
    left_out = _without_effect(translation, side)
    with in_anthropics_words(translation.places):
        names = CHAT.check(translation.chat, side)
    return [*left_out, *(anthropics_name(name, translation.places) for name in names)]


def _without_effect(translation: Translation, side: ModelSide) -> list[str]:
    """Fields without effect for this model. Raises RequestError where the policy is to refuse them."""
    left_out = translation.left_out
    # Clients such as Claude Code ask for thinking whatever the model is.
    if translation.chat.thinking and not side.text.chat_template.takes_thinking:
        left_out = {**left_out, "thinking": _NO_SWITCH}
    if left_out and side.options.unknown_fields == "refuse":
        raise has_no_effect(*next(iter(left_out.items())))
    return list(left_out)


_NOT_OURS = "tools that Anthropic defines or runs are not here"
_NO_SWITCH = "the model's chat template does not read whether the model shall think"


def _for_template(chat: ChatBody, side: ModelSide) -> ChatBody:
    takes = side.text.chat_template.takes_thinking
    return chat if takes else msgspec.structs.replace(chat, thinking=None)


async def _prepare(body: MessagesBody, side: ModelSide) -> Prepared:
    chat, places, _ = _translated(body)
    unbounded = msgspec.structs.replace(_for_template(chat, side), max_tokens=None)
    with in_anthropics_words(places):
        ((request, prompt),) = await CHAT.prepare(unbounded, side)
        # Clients ask for more tokens than a small context has: what it leaves is given.
        most = min(body.max_tokens, side.info.max_model_len - len(request.prompt_token_ids))
        sampling = dataclasses.replace(request.sampling, max_tokens=most)
    return [(dataclasses.replace(request, sampling=sampling), prompt)]


def _slim(body: MessagesBody) -> MessagesBody:
    # A reply needs to know who spoke last, and the types of tools' arguments.
    user = None if body.metadata is None else (body.metadata.user_id or "")[:USER_CHARS] or None
    own = [tool for tool in body.tools or () if tool.type in (None, "custom")]
    dropped = (
        "system",
        "output_config",
        "output_format",
        "betas",
        "cache_control",
        "context_management",
        "diagnostics",
    )
    return msgspec.structs.replace(
        body,
        messages=[MessageBody(role=message.role, content="") for message in body.messages[-1:]],
        tools=[ToolBody(name=tool.name, input_schema=types_alone(tool.input_schema or {})) for tool in own] or None,
        metadata=None if user is None else MetadataBody(user_id=user),
        **dict.fromkeys(dropped),
    )


async def _counted(body: CountTokensBody, side: ModelSide) -> bytes:
    side.check_model(body.model)
    translation = _translated(body)
    _without_effect(translation, side)
    chat = _for_template(translation.chat, side)
    with in_anthropics_words(translation.places):
        tools = offered_tools(chat, side.answer_form, side.options)
        rendered = await render(chat, tools, side.text)
    return msgspec.json.encode({"input_tokens": len(rendered.token_ids)})


MESSAGES = Endpoint("messages", MessagesBody, _check, _prepare, _slim, as_chat)
COUNT_TOKENS = TextEndpoint("count_tokens", CountTokensBody, _counted)
