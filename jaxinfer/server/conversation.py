"""From a chat's body to what its template renders, and to what is looked for in the answer."""

from typing import Any

import msgspec

from jaxinfer.server.chat_schema import ChatBody
from jaxinfer.server.config import ServerConfig
from jaxinfer.server.errors import ApiError
from jaxinfer.server.prompts import Conversation
from jaxinfer.text.answer import AnswerFormat
from jaxinfer.text.chat_template import ChatTemplate
from jaxinfer.text.tools import check_tools


def conversation(body: ChatBody, tools: list[dict[str, Any]] | None, template: ChatTemplate) -> Conversation:
    """What the template renders. Raises ApiError."""
    if body.thinking is not None and not template.takes_thinking:
        message = "thinking: the model's chat template does not read whether the model shall think"
        raise ApiError(400, message, param="thinking", code="unsupported_parameter")
    return Conversation(
        messages=body.messages,
        tools=tools,
        template_kwargs=_template_kwargs(body),
        add_generation_prompt=body.add_generation_prompt is not False,
        add_special_tokens=body.add_special_tokens is True,
    )


def offered_tools(body: ChatBody, form: AnswerFormat, options: ServerConfig) -> list[dict[str, Any]] | None:
    """The tools that the model may call; None where there are none, or `tool_choice` is `none`. Raises ApiError."""
    choice = body.tool_choice
    if choice not in (None, "none", "auto"):
        known = choice == "required" or isinstance(choice, dict)
        said = "needs constrained decoding, which is not supported yet" if known else "is not known"
        code = "unsupported_parameter" if known else None
        raise ApiError(
            400, f"tool_choice: {_shown(choice)} {said}; `auto` and `none` are", param="tool_choice", code=code
        )
    if not body.tools:
        if choice == "auto":
            raise ApiError(400, "tool_choice: `auto` needs tools", param="tool_choice")
        return None
    for i, tool in enumerate(body.tools):
        if tool.function.strict:
            param = f"tools[{i}].function.strict"
            message = f"{param} needs constrained decoding, which is not supported yet"
            raise ApiError(400, message, param=param, code="unsupported_parameter")
    tools = [msgspec.to_builtins(tool) for tool in body.tools]
    check_tools(tools)
    if choice == "none":
        return None
    if not form.tools and options.tool_call_parser == "auto":
        message = "tools: the form in which this model calls tools is not known; `--tool-call-parser` can name it"
        raise ApiError(400, message, param="tools", code="unsupported_parameter")
    return tools


def answer_form(options: ServerConfig, template: AnswerFormat) -> AnswerFormat:
    """What is looked for in answers, by the server's settings and the model's chat template."""
    return AnswerFormat(
        reasoning=template.reasoning if options.reasoning_parser == "auto" else options.reasoning_parser == "think",
        tools=template.tools if options.tool_call_parser == "auto" else options.tool_call_parser == "hermes",
    )


def _template_kwargs(body: ChatBody) -> dict[str, Any] | None:
    if body.thinking is None:
        return body.chat_template_kwargs
    said, thinks = body.chat_template_kwargs or {}, body.thinking.type == "enabled"
    for name in ("enable_thinking", "thinking"):
        if said.get(name, thinks) is not thinks:
            message = f"thinking: contradicts chat_template_kwargs.{name}; give one of them"
            raise ApiError(400, message, param="thinking")
    # Qwen's and DeepSeek's names of it.
    return {**said, "enable_thinking": thinks, "thinking": thinks}


def _shown(choice: Any) -> str:
    return f"`{choice}`" if isinstance(choice, str) else "a named function"
