"""ToolChoice: which functions an answer may or must call, and the grammar of such an answer."""

import json
from typing import Any, Literal, NamedTuple

from jaxinfer.constraint import Constraint
from jaxinfer.serving.bodies.chat_schema import ChatBody, Function
from jaxinfer.serving.errors import RequestError
from jaxinfer.structural_tag import Node, without
from jaxinfer.text.answer.calls.form import Callable, CallForm, one_or_more
from jaxinfer.text.answer.parser import AnswerFormat

_FORMS = "`auto`, `none`, `required`, a named function and `allowed_tools` are"


class ToolChoice(NamedTuple):
    """names: of the functions that may be called; None: all. named: exactly one, called once."""

    mode: Literal["auto", "none", "required"]
    names: frozenset[str] | None = None
    named: bool = False


def tool_choice(body: ChatBody) -> ToolChoice:
    """OpenAI's `tool_choice`. Raises RequestError for another one, and for a function that is not among the tools."""
    given = body.tool_choice
    if given is None:
        return ToolChoice("auto")
    if given in ("auto", "none", "required"):
        choice = ToolChoice(given)
    elif isinstance(given, dict) and given.get("type") == "function":
        choice = ToolChoice("required", frozenset([_name(given, "tool_choice", body)]), named=True)
    elif isinstance(given, dict) and given.get("type") == "allowed_tools":
        choice = _allowed(given.get("allowed_tools"), body)
    else:
        shown = f"`{given}`" if isinstance(given, str) else f"an object of type {given.get('type')!r}"
        raise RequestError(f"tool_choice: {shown} is not known; {_FORMS}", param="tool_choice")
    if choice.mode != "none" and not body.tools:
        raise RequestError(f"tool_choice: `{choice.mode}` needs tools", param="tool_choice")
    return choice


def _allowed(given: Any, body: ChatBody) -> ToolChoice:
    param = "tool_choice.allowed_tools"
    mode = given.get("mode") if isinstance(given, dict) else None
    if mode not in ("auto", "required"):
        raise RequestError(f"{param}.mode: {mode!r} is not known; `auto` and `required` are", param=f"{param}.mode")
    tools = given.get("tools")
    if not isinstance(tools, list) or not tools:
        raise RequestError(f"{param}.tools: must be a list of tools", param=f"{param}.tools")
    return ToolChoice(mode, frozenset(_name(tool, f"{param}.tools[{i}]", body) for i, tool in enumerate(tools)))


def _name(given: Any, where: str, body: ChatBody) -> str:
    """Return the name of a function that is among the tools."""
    function = given.get("function") if isinstance(given, dict) and given.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        message = f'{where}: must be {{"type": "function", "function": {{"name": …}}}}'
        raise RequestError(message, param=where)
    if not any(tool.function.name == name for tool in body.tools or ()):
        param = f"{where}.function.name"
        raise RequestError(f"{param}: {name[:64]!r} is none of the tools", param=param)
    return name


def calls_constraint(body: ChatBody, form: AnswerFormat, content: Constraint | None) -> Constraint | None:
    """Return the constraint of an answer if tools are offered; None if it is free. content: constraint of an answer
    that is no call. Raises RequestError or ParameterError for answers that cannot be constrained yet."""
    choice, one = tool_choice(body), body.parallel_tool_calls is False
    functions = _functions(body, choice)
    reason = _reason(choice, functions, content, one=one)
    if reason is None or not _can_constrain(reason, form, body):
        return None
    if choice.mode == "required":
        known = [each.function for each in functions]
        return Constraint.tags(_only_calls(form, known, one=one or choice.named), reason)
    if content is not None:
        return Constraint.tags(_calls_or(content, form, _as_auto(functions, form), one=one), reason)
    return Constraint.tags(_text_and_calls(form, _as_auto(functions, form), one=one), reason)


class _Offered(NamedTuple):
    """A function that may be called. strict: its calls follow its schema also if the model chooses to call."""

    number: int
    strict: bool
    function: Callable


def _functions(body: ChatBody, choice: ToolChoice) -> list[_Offered]:
    return [
        _Offered(i, bool(one.strict), Callable(one.name, _schema(one), f"tools[{i}].function.parameters"))
        for i, one in ((i, tool.function) for i, tool in enumerate(body.tools or ()))
        if choice.names is None or one.name in choice.names
    ]


def _schema(function: Function) -> dict[str, Any]:
    """A function without parameters has none, as OpenAI says."""
    if not function.parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **function.parameters}


def _as_auto(functions: list[_Offered], form: AnswerFormat) -> list[Callable]:
    """Drop the schemas of functions that are not strict: if the model itself chooses to call, only strict functions
    promise theirs. A form whose arguments follow from their schema keeps it."""
    needed = form.constrained_calls is not None and form.constrained_calls.needs_schema
    return [one if needed or strict else one._replace(schema={"type": "object"}) for _, strict, one in functions]


def _reason(choice: ToolChoice, functions: list[_Offered], content: Constraint | None, *, one: bool) -> str | None:
    """The field for whose sake answers are constrained."""
    if choice.mode == "required" or choice.names is not None:
        return "tool_choice"
    if content is not None:
        return content.param
    strict = next((each.number for each in functions if each.strict), None)
    if strict is not None:
        return f"tools[{strict}].function.strict"
    return "parallel_tool_calls" if one else None


def _can_constrain(reason: str, form: AnswerFormat, body: ChatBody) -> bool:
    """False where what clients send with each request does what it can: nothing. Raises RequestError for the rest."""
    known, param = form.constrained_calls is not None, reason.partition(".")[0]
    if known and not body.continue_final_message:
        return True
    if reason == "parallel_tool_calls" or (reason.endswith(".strict") and not known):
        return False
    what = "where calls are not taken out of answers"
    if known:
        what = "for an answer that goes on with the last message"
    elif form.channels:
        what = "for a model that answers in channels"
    raise RequestError(f"{param}: is not supported yet {what}", param=param, code="unsupported_parameter")


def _text_and_calls(form: AnswerFormat, functions: list[Callable], *, one: bool) -> Node:
    calls = _calls(form)
    return {"type": "triggered_tags", "triggers": [calls.begins[0]], "tags": calls.tags(functions, one=one),
            "at_least_one": False, "stop_after_first": one or calls.wraps, "excludes": [*calls.begins[1:]]}  # fmt: skip


def _calls_or(content: Constraint, form: AnswerFormat, functions: list[Callable], *, one: bool) -> Node:
    fitting = without(_node(content), [*_calls(form).begins], content.param)
    return {"type": "or", "elements": [_only_calls(form, functions, one=one), fitting]}


def _only_calls(form: AnswerFormat, functions: list[Callable], *, one: bool) -> Node:
    calls = _calls(form)
    found = one_or_more(calls.tags(functions, one=one), calls.between, one=one or calls.wraps)
    if form.thoughts is None:
        return found
    # Models that think begin their answer so.
    return {"type": "sequence", "elements": [{"type": "regex", "pattern": r"(\n\n)?"}, found]}


def _calls(form: AnswerFormat) -> CallForm:
    assert form.constrained_calls is not None
    return form.constrained_calls


def _node(content: Constraint) -> Node:
    """A constraint as part of a structural tag."""
    kind, value = content.kind, content.value
    if kind in ("json_schema", "json_object"):
        schema = json.loads(value) if kind == "json_schema" else {"type": "object"}
        return {"type": "json_schema", "json_schema": schema, "param": content.param, "whitespace": content.whitespace}
    if kind == "choice":
        return {"type": "or", "elements": [{"type": "const_string", "value": each} for each in json.loads(value)]}
    if kind == "structural_tag":
        return json.loads(value)
    return {"type": kind, {"regex": "pattern", "grammar": "grammar"}[kind]: value, "param": content.param}
