"""Tools that a conversation offers, checked before a template sees them."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxinfer.errors import ParameterError

MAX_TOOLS = 128
MAX_TOOL_CHARS = 64 * 1024
MAX_TOOL_DEPTH = 32
MAX_TOOL_VALUES = 8192

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
    function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
    if not isinstance(function, Mapping):
        raise ParameterError(where, 'must be {"type": "function", "function": {"name": …}}')
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ParameterError(f"{where}.function.name", "must have 1 to 64 letters, digits, `_`, `.` or `-`")
    _check_extent(function, f"{where}.function")
    _check_parameters(function.get("parameters"), f"{where}.function.parameters")
    return name


def _check_extent(function: Mapping[str, Any], where: str) -> None:
    """Without recursion, which a client's JSON could exhaust, and no further than is allowed."""
    count, queue = 0, [(function, 1)]
    while queue:
        value, level = queue.pop()
        count += 1
        if level > MAX_TOOL_DEPTH:
            raise ParameterError(where, f"is nested deeper than {MAX_TOOL_DEPTH} levels")
        if isinstance(value, Mapping | list):
            if count + len(queue) + len(value) > MAX_TOOL_VALUES:
                raise ParameterError(where, f"has more than {MAX_TOOL_VALUES} values")
            queue.extend((item, level + 1) for item in (value.values() if isinstance(value, Mapping) else value))
    size = len(json.dumps(function))
    if size > MAX_TOOL_CHARS:
        raise ParameterError(where, f"has {size} characters; at most {MAX_TOOL_CHARS} are allowed")


def _check_parameters(parameters: Any, where: str) -> None:
    if not parameters:
        return
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise ParameterError(where, 'must be a JSON Schema of `"type": "object"`')
    properties, required = parameters.get("properties", {}), parameters.get("required", [])
    if not isinstance(properties, Mapping):
        raise ParameterError(f"{where}.properties", "must be an object of schemas by name")
    for name, schema in properties.items():
        if not isinstance(schema, Mapping | bool):
            raise ParameterError(f"{where}.properties.{name}", "must be a JSON Schema: an object, true or false")
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise ParameterError(f"{where}.required", "must be a list of names")
