"""From a chat's body to its prompt, and to what is looked for in the answer."""

from typing import Any

import msgspec

from jaxinfer.serving.bodies.chat_schema import ChatBody, Message, Thinking, TokenizeBody, Tool
from jaxinfer.serving.config import ServerConfig
from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.requests.tool_choice import tool_choice
from jaxinfer.text import TextProcessor
from jaxinfer.text.answer.calls.argument_types import ToolSchema
from jaxinfer.text.answer.calls.form import CallForm
from jaxinfer.text.answer.calls.registry import form_of_name
from jaxinfer.text.answer.forms import UnparsedForm
from jaxinfer.text.answer.parser import AnswerFormat
from jaxinfer.text.answer.thoughts import Thoughts, thoughts_of_name
from jaxinfer.text.template.chat_template import ChatTemplate
from jaxinfer.text.template.conversation_ids import RenderedPrompt
from jaxinfer.text.template.messages import REASONING_NAMES, content_text, template_message
from jaxinfer.text.template.tools import check_tools

MAX_MESSAGES = 10_000
"""Messages of a conversation, and text parts and tool calls of all its messages together."""


async def render(
    body: ChatBody | TokenizeBody, tools: list[dict[str, Any]] | None, text: TextProcessor, most: int | None = None
) -> RenderedPrompt:
    """Render the prompt of a conversation by the model's template. most: tokens that it may have; None: any number.

    Raises RequestError or ParameterError.
    """
    template_kwargs, continued = _template_kwargs(body, text.chat_template), _continues(body)
    said = body.messages
    if not said:
        raise RequestError("messages: is empty", param="messages")
    _check_count(said)
    messages = [_plain(message, f"messages[{i}]") for i, message in enumerate(said)]
    for i, message in enumerate(messages):
        text.tokenizer.check_text(message["content"], f"messages[{i}].content")
    # A template writes the special tokens itself, the first one included.
    return await text.conversations.encode_async(
        messages,
        add_special_tokens=body.add_special_tokens is True,
        tools=tools,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=continued,
        template_kwargs=template_kwargs,
        most=most,
    )


def _check_count(messages: list[Message]) -> None:
    parts = sum(len(message.content) for message in messages if isinstance(message.content, list))
    calls = sum(len(message.tool_calls or ()) for message in messages)
    for count, name in ((len(messages), "messages"), (parts, "text parts"), (calls, "tool calls")):
        if count > MAX_MESSAGES:
            raise RequestError(f"messages: has {count} {name}; at most {MAX_MESSAGES} are allowed", param="messages")


def _plain(message: Message, where: str) -> dict[str, Any]:
    for name in ("audio", "function_call"):
        if getattr(message, name):
            param = f"{where}.{name}"
            raise RequestError(f"{param} is not supported yet", param=param, code="unsupported_parameter")
    if message.refusal is not None and not isinstance(message.refusal, str):
        raise RequestError(f"{where}.refusal: must be a string", param=f"{where}.refusal")
    said = msgspec.to_builtins(message)
    if message.refusal and not message.content:
        said["content"] = message.refusal  # what the assistant said instead
    return template_message({name: said[name] for name in _TEMPLATE_FIELDS if said[name] is not None}, where)


_TEMPLATE_FIELDS = ("role", "content", "name", *REASONING_NAMES, "tool_calls", "tool_call_id")


def _continues(body: ChatBody | TokenizeBody) -> bool:
    """Return whether the prompt ends with the last message, open-ended. Raises RequestError."""
    if body.continue_final_message and body.add_generation_prompt:
        message = "continue_final_message: contradicts add_generation_prompt; give one of them"
        raise RequestError(message, param="continue_final_message")
    return body.continue_final_message is True


def echoed_text(body: ChatBody) -> str:
    """Return the text that the answer continues and `echo` repeats: the last message, if the assistant wrote it."""
    last = body.messages[-1] if body.echo else None
    if last is None or last.role != "assistant":
        return ""
    return content_text(last.content or "", f"messages[{len(body.messages) - 1}].content")


def offered_tools(body: ChatBody, form: AnswerFormat, options: ServerConfig) -> list[dict[str, Any]] | None:
    """The tools that the model may call; None where there are none, or `tool_choice` is `none`. Raises RequestError."""
    choice = tool_choice(body)
    if not body.tools:
        return None
    tools = template_tools(body.tools)
    if choice.mode == "none":
        return None
    if form.calls is None and options.tool_call_parser == "auto":
        message = "tools: the form in which this model calls tools is not known; `--tool-call-parser` can name it"
        raise RequestError(message, param="tools", code="unsupported_parameter")
    return tools


def tool_schemas(body: ChatBody) -> list[ToolSchema]:
    """The tools that a body offers the model, which was prepared."""
    offered = [] if body.tool_choice == "none" else body.tools or []
    return [(tool.function.name, tool.function.parameters) for tool in offered]


def template_tools(tools: list[Tool]) -> list[dict[str, Any]]:
    """Tools as templates take them: without `strict`, which constrains answers and must not change the prompt.

    Raises ParameterError.
    """
    plain = [msgspec.to_builtins(tool) for tool in tools]
    for tool in plain:
        tool["function"].pop("strict", None)
    check_tools(plain)
    return plain


def answer_form(options: ServerConfig, template: AnswerFormat) -> AnswerFormat:
    """Return the format in which answers are parsed, from the server's settings and the model's chat template.

    Channels hold both reasoning and calls: they are read unless both settings name something else.
    """
    return AnswerFormat(
        thoughts=_thoughts(options.reasoning_parser, template.thoughts),
        calls=_call_form(options.tool_call_parser, template.calls),
        channels=template.channels and "auto" in (options.reasoning_parser, options.tool_call_parser),
    )


def _thoughts(asked: str, shown: Thoughts | None) -> Thoughts | None:
    if asked == "none":
        return None
    return shown if asked == "auto" else thoughts_of_name(asked)


def _call_form(asked: str, shown: CallForm | None) -> CallForm | None:
    if asked == "none":
        return None
    return shown if asked == "auto" else form_of_name(asked, shown)


def unparsed_forms(options: ServerConfig, template: ChatTemplate) -> list[UnparsedForm]:
    """Return the forms of answers that are not parsed although the server's settings leave them to the template."""
    parsers = {"reasoning": options.reasoning_parser, "tool calls": options.tool_call_parser}
    return [form for form in template.unparsed_forms() if parsers[form.what] == "auto"]


def _template_kwargs(body: ChatBody | TokenizeBody, template: ChatTemplate) -> dict[str, Any]:
    """The client's arguments for the template, and what turns thinking on or off. Raises RequestError."""
    return {**_thinking_kwargs(body, template), **(body.chat_template_kwargs or {})}


def _thinking_kwargs(body: ChatBody | TokenizeBody, template: ChatTemplate) -> dict[str, Any]:
    """Return the template's arguments on whether, and how hard, the model shall think. Raises RequestError.

    An explicit switch goes before `reasoning_effort`, which many clients send by default.
    """
    given = _switches(body)
    if given and not template.takes_thinking:
        name = next(iter(given))
        message = f"{name}: the model's chat template does not read whether the model shall think"
        raise RequestError(message, param=name, code="unsupported_parameter")
    if len(set(given.values())) > 1:
        first, second = given
        raise RequestError(f"{first}: contradicts {second}; give one of them", param=first)
    _check_contradiction(body, given)
    effort, kwargs = body.reasoning_effort, {}
    if effort not in (None, "none") and template.takes_effort:
        kwargs["reasoning_effort"] = effort
    thinks = next(iter(given.values())) if given else _thinks_by_effort(body)
    if thinks is None or not template.takes_thinking:
        return kwargs
    return {**kwargs, **dict.fromkeys(_SWITCHES, thinks)}


def _thinks_by_effort(body: ChatBody | TokenizeBody) -> bool | None:
    """Return whether `reasoning_effort` asks for thinking; None if it is absent, or the template's own arguments say
    it."""
    if body.reasoning_effort is None or _SWITCHES & (body.chat_template_kwargs or {}).keys():
        return None
    return body.reasoning_effort != "none"


_SWITCHES = frozenset({"enable_thinking", "thinking"})
"""Names of the switch that Qwen's and DeepSeek's templates read."""


def _switches(body: ChatBody | TokenizeBody) -> dict[str, bool]:
    """The explicit switches of thinking that the request gives."""
    thinking = body.thinking
    if isinstance(thinking, Thinking):
        thinking = thinking.type == "enabled"
    named = {"thinking": thinking, "enable_thinking": body.enable_thinking}
    return {name: value for name, value in named.items() if value is not None}


def _check_contradiction(body: ChatBody | TokenizeBody, given: dict[str, bool]) -> None:
    kwargs = body.chat_template_kwargs or {}
    for switch, thinks in given.items():
        for name in _SWITCHES & kwargs.keys():
            if kwargs[name] is not thinks:
                message = f"{switch}: contradicts chat_template_kwargs.{name}; give one of them"
                raise RequestError(message, param=switch)
