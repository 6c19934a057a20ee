"""Tools of /v1/responses as functions of a chat: custom tools take one text, namespaces are part of a name."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxinfer.serving.bodies.chat_schema import Function, Tool
from jaxinfer.serving.bodies.responses_schema import ResponsesTool
from jaxinfer.serving.errors import RequestError

HOSTED = (
    "web_search", "file_search", "code_interpreter", "image_generation", "mcp", "local_shell", "shell", "computer",
    "apply_patch", "tool_search", "programmatic_tool_calling",
)  # fmt: skip
"""Beginnings of the types of tools that OpenAI's servers or models bring along. They are left out."""

CUSTOM_ARGUMENT = "input"
"""The argument of the function that a custom tool is for the model."""


class OfferedTool(NamedTuple):
    """A tool that the model may call. where: it in the request. namespace: None if it is in none."""

    where: str
    name: str
    namespace: str | None
    is_custom: bool
    function: Function


def flat_name(name: str, namespace: str | None) -> str:
    """The model's name of a tool: `NAMESPACE.NAME`, or its name."""
    return name if namespace is None else f"{namespace}.{name}"


def is_hosted(tool: ResponsesTool) -> bool:
    """Return whether somebody else than the client would have to run a tool."""
    return tool.type.startswith(HOSTED)


def hosted_types(tools: Sequence[ResponsesTool] | None) -> dict[str, str]:
    """Types of the tools that are left out, by their places."""
    return {f"tools[{i}]": tool.type for i, tool in enumerate(tools or ()) if is_hosted(tool)}


def offered_tools(tools: Sequence[ResponsesTool] | None) -> list[OfferedTool]:
    """The tools that the model may call, those inside namespaces included. Raises RequestError."""
    return [found for i, tool in enumerate(tools or ()) for found in _offered(tool, f"tools[{i}]")]


def _offered(tool: ResponsesTool, where: str) -> Iterator[OfferedTool]:
    if tool.type == "namespace":
        namespace = _name(tool, where)
        for i, each in enumerate(tool.tools or ()):
            yield _leaf(each, f"{where}.tools[{i}]", namespace)
    elif not is_hosted(tool):
        yield _leaf(tool, where, None)


def _leaf(tool: ResponsesTool, where: str, namespace: str | None) -> OfferedTool:
    if tool.type not in ("function", "custom"):
        message = f"{where}.type: {tool.type[:64]!r} is not known; function, custom and namespace are"
        raise RequestError(message, param=f"{where}.type")
    name = _name(tool, where)
    is_custom = tool.type == "custom"
    function = Function(
        name=flat_name(name, namespace),
        description=tool.description,
        parameters=_text_parameters(tool) if is_custom else tool.parameters,
        strict=None if is_custom else tool.strict,
    )
    return OfferedTool(where, name, namespace, is_custom, function)


def _name(tool: ResponsesTool, where: str) -> str:
    if not tool.name:
        raise RequestError(f"{where}.name: is missing", param=f"{where}.name")
    return tool.name


def _text_parameters(tool: ResponsesTool) -> dict[str, Any]:
    """Parameters of the function that a custom tool is. The model reads the format of its text in a description."""
    text: dict[str, Any] = {"type": "string"}
    definition = (tool.format or {}).get("definition")
    if isinstance(definition, str):
        text["description"] = f"A text of this {(tool.format or {}).get('syntax', 'grammar')} grammar:\n{definition}"
    required = [CUSTOM_ARGUMENT]
    return {
        "type": "object",
        "properties": {CUSTOM_ARGUMENT: text},
        "required": required,
        "additionalProperties": False,
    }


def custom_arguments(text: str) -> str:
    """Arguments of a call of a custom tool, as the model writes them."""
    return json.dumps({CUSTOM_ARGUMENT: text}, ensure_ascii=False)


def chat_tools(offered: Sequence[OfferedTool]) -> list[Tool] | None:
    """Tools as a chat offers them; None if there are none."""
    return [Tool(type="function", function=tool.function) for tool in offered] or None


def tool_places(offered: Sequence[OfferedTool]) -> dict[str, str]:
    """Places of a chat's tools, and what they are called in the request."""
    return {place: tool.where for i, tool in enumerate(offered) for place in (f"tools[{i}]", f"tools[{i}].function")}


def chat_tool_choice(
    choice: str | dict[str, Any] | None, offered: Sequence[OfferedTool]
) -> str | dict[str, Any] | None:
    """`tool_choice` as a chat has it. What is not known there is left to its check. Raises RequestError."""
    if choice == "auto" and not offered:  # many clients send it with each request
        return None
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools":
        given = choice.get("tools")
        named = [_chosen(each, offered) for each in given] if isinstance(given, list) else given
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": named}}
    return _chosen(choice, offered)


def _chosen(choice: Any, offered: Sequence[OfferedTool]) -> Any:
    """A function as chats name it. choice: `{"type", "name"}`, perhaps with a namespace."""
    if not isinstance(choice, Mapping) or choice.get("type") not in ("function", "custom"):
        return choice
    name, namespace = choice.get("name"), choice.get("namespace")
    for tool in offered:
        if tool.name == name and namespace in (None, tool.namespace):
            name = tool.function.name
            break
    return {"type": "function", "function": {"name": name}}
