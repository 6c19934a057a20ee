"""Tools that a conversation offers, checked before a template sees them."""

import json
import re
from collections.abc import Sequence
from typing import Any

from jaxinfer.errors import ParameterError

MAX_TOOLS = 128
MAX_TOOL_CHARS = 64 * 1024
MAX_TOOL_DEPTH = 32

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check_tools(tools: Sequence[Any]) -> None:
    """Raises ParameterError where tools, in OpenAI's form, are too many, too large, too deep, or have no name."""
    if len(tools) > MAX_TOOLS:
        raise ParameterError("tools", f"has {len(tools)} tools; at most {MAX_TOOLS} are allowed")
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        name = _check_tool(tool, f"tools[{i}]")
        if name in seen:
            raise ParameterError(f"tools[{i}].function.name", f"{name!r} is there twice")
        seen.add(name)


def _check_tool(tool: Any, where: str) -> str:
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    if not isinstance(function, dict):
        raise ParameterError(where, 'must be {"type": "function", "function": {"name": …}}')
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ParameterError(f"{where}.function.name", "must have 1 to 64 letters, digits, `_`, `.` or `-`")
    if _depth(function) > MAX_TOOL_DEPTH:
        raise ParameterError(f"{where}.function", f"is nested deeper than {MAX_TOOL_DEPTH} levels")
    size = len(json.dumps(function))
    if size > MAX_TOOL_CHARS:
        raise ParameterError(f"{where}.function", f"has {size} characters; at most {MAX_TOOL_CHARS} are allowed")
    _check_parameters(function.get("parameters"), f"{where}.function.parameters")
    return name


def _check_parameters(parameters: Any, where: str) -> None:
    if not parameters:
        return
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        raise ParameterError(where, 'must be a JSON Schema of `"type": "object"`')
    if not isinstance(parameters.get("properties", {}), dict):
        raise ParameterError(f"{where}.properties", "must be an object of schemas by name")


def _depth(value: Any) -> int:
    """Levels of nesting; counted without recursion, which a client's JSON could exhaust."""
    deepest, queue = 0, [(value, 1)]
    while queue:
        inner, level = queue.pop()
        deepest = max(deepest, level)
        if isinstance(inner, dict | list) and level <= MAX_TOOL_DEPTH + 1:
            queue.extend((item, level + 1) for item in (inner.values() if isinstance(inner, dict) else inner))
    return deepest
