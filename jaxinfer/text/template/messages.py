"""Messages of a conversation as templates take them: a role, a text, and what tools say."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jaxinfer.errors import ParameterError
from jaxinfer.text.answer.json_strings import json_object

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles of OpenAI's API. Others are for templates that know them."""

MAX_ROLE_CHARS = 64
REASONING_NAMES = ("reasoning_content", "reasoning", "thinking")
"""Names of the assistant's reasoning in APIs and templates: DeepSeek and Qwen, vLLM, gpt-oss and Ollama."""


def template_message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A message of OpenAI's form as chat templates read it: content as one text, arguments of calls as objects where
    they are any.

    The content may be absent beside calls, and beside reasoning. Reasoning is `reasoning_content`, whatever it was
    called; `with_reasoning_names` gives it a template's names.

    where: what errors call it, `messages[0]`. Raises ParameterError.
    """
    role, calls = message.get("role"), message.get("tool_calls")
    if calls is not None and (isinstance(calls, str) or not isinstance(calls, Sequence)):
        raise ParameterError(f"{where}.tool_calls", "must be a list of calls")
    if not isinstance(role, str) or not 1 <= len(role) <= MAX_ROLE_CHARS:
        raise ParameterError(f"{where}.role", f"must have 1 to {MAX_ROLE_CHARS} characters")
    if calls and role != "assistant":
        raise ParameterError(f"{where}.tool_calls", "only a message of the assistant may have them")
    content = message.get("content")
    optional = calls or (role == "assistant" and any(message.get(name) for name in REASONING_NAMES))
    # OpenAI's newer name of the system role, which few templates know and some drop in silence.
    plain: dict[str, Any] = {
        **message,
        "role": "system" if role == "developer" else role,
        "content": "" if content is None and optional else content_text(content, f"{where}.content"),
    }
    given = {name: plain.pop(name) for name in REASONING_NAMES if name in plain}
    plain.update(_reasoning(given, where))
    if calls:
        plain["tool_calls"] = [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
    return plain


def with_reasoning_names(message: Mapping[str, Any], names: Collection[str]) -> Mapping[str, Any]:
    """A message of `template_message` that has its reasoning also under those of `names` that are REASONING_NAMES."""
    reasoning = message.get("reasoning_content")
    if reasoning is None:
        return message
    return {**message, **{name: reasoning for name in REASONING_NAMES if name in names}}


def _reasoning(given: Mapping[str, Any], where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, reasoning in given.items():
        if reasoning is None:
            continue
        if not isinstance(reasoning, str):
            raise ParameterError(f"{where}.{name}", f"must be a string, not {type(reasoning).__name__}")
        if found.setdefault("reasoning_content", reasoning) != reasoning:
            others = " and ".join(other for other in REASONING_NAMES if other in given and other != name)
            raise ParameterError(f"{where}.{name}", f"is another name of {others}, and differs from it")
    return found


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ParameterError(where, "must have a `function` with `name` and `arguments`")
    arguments = _arguments(function.get("arguments"), where)
    named = {"name": function["name"], "arguments": arguments}
    return {"id": call.get("id"), "type": "function", "function": named}


def _arguments(given: Any, where: str) -> dict[str, Any] | str:
    """An object, or the text that a model wrote and that is none: a history with it must not be refused."""
    if given is None or given == "":
        return {}
    if isinstance(given, str):
        found = json_object(given)
        return given if found is None else found
    if not isinstance(given, Mapping):
        raise ParameterError(f"{where}.function.arguments", "must be a JSON object, or a text")
    return dict(given)


def with_object_arguments(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message of `template_message` for templates that read arguments of calls as objects only: a text that is none
    becomes the one value of an object."""
    calls = message.get("tool_calls")
    return {**message, "tool_calls": list(map(_with_object, calls))} if calls else message


def _with_object(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    return call if not isinstance(arguments, str) else {**call, "function": {**function, "arguments": {"": arguments}}}


def content_text(content: Any, where: str) -> str:
    """The text of a message's content: a string, or a list of text parts, which line breaks join.

    where: what errors call it, `messages[0].content`. Raises ParameterError.
    """
    if isinstance(content, str):
        return content
    if content is None:
        raise ParameterError(where, "is missing")
    if not isinstance(content, Sequence):
        raise ParameterError(where, f"must be a string or a list of text parts, not {type(content).__name__}")
    return "\n".join(_part_text(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise ParameterError(f"{where}.type", f"{kind!r} is not supported; only text parts are")
    field = _TEXT_PARTS[kind]
    if not isinstance(part.get(field), str):
        raise ParameterError(where, f"must be {{'type': {kind!r}, {field!r}: a string}}")
    return part[field]


_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""OpenAI's names of text parts in chats, and those of its newer API, which some clients send here, too; and the field
that holds the text."""
