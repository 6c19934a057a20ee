"""Constraint of a text, built from every field that can ask for one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from jaxinfer.constraint import Constraint, check_object
from jaxinfer.errors import ParameterError
from jaxinfer.sampling import SamplingParams
from jaxinfer.serving.bodies.chat_schema import ChatBody, Tool
from jaxinfer.serving.bodies.schema import GenerateBody
from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.requests.tool_choice import calls_constraint
from jaxinfer.text.answer.calls.argument_types import schemas_of
from jaxinfer.text.answer.parser import AnswerFormat
from jaxinfer.text.tokenizer.tokenizer import Tokenizer

_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
"""vLLM's older fields, and the keys of `structured_outputs` that they are."""
_TYPES = ("text", "json_object", "json_schema", "regex", "grammar", "structural_tag")


def constraint_of(body: GenerateBody) -> Constraint | None:
    """None where the text is free. Raises ParameterError that names the field, and its part."""
    found = [
        *_response_format(body.response_format),
        *([] if body.structured_outputs is None else [Constraint.outputs(body.structured_outputs)]),
        *(each for name, key in _GUIDED.items() for each in Constraint.of_key(key, getattr(body, name), name)),
    ]
    pattern = body.guided_whitespace_pattern
    if len(found) > 1:
        names = " and ".join(each.param.partition(".")[0] for each in found[:2])
        raise ParameterError(found[1].param.partition(".")[0], f"{names} both say what the text must be; give one")
    if pattern is not None and not found:
        raise ParameterError("guided_whitespace_pattern", "needs guided_json")
    if not found or pattern is None:
        return found[0] if found else None
    return found[0].with_spacing(pattern, "guided_whitespace_pattern")


def _response_format(value: Any) -> list[Constraint]:
    """OpenAI's, with the schema in `json_schema`, or beside `type` as in the Responses API."""
    if value is None:
        return []
    name = "response_format"
    check_object(value, name)
    kind = value.get("type")
    if kind not in _TYPES:
        raise ParameterError(f"{name}.type", f"{kind!r} must be one of {', '.join(_TYPES)}")
    if kind == "text":
        return []
    if kind == "json_object":
        schema = value.get("schema")
        return [
            Constraint("json_object", param=name) if schema is None else Constraint.schema(schema, f"{name}.schema")
        ]
    if kind == "json_schema":
        return [_json_schema(value, name)]
    if kind == "structural_tag":
        return [Constraint.structural_tag(value, name)]
    key = "pattern" if kind == "regex" and "pattern" in value else kind
    return [Constraint.text(kind, value.get(key), f"{name}.{key}")]


def _json_schema(value: dict[str, Any], name: str) -> Constraint:
    inner = value.get("json_schema")
    where = name if inner is None else f"{name}.json_schema"
    holder = value if inner is None else inner
    check_object(holder, where)
    if "schema" not in holder:
        missing = f"{name}.json_schema" if inner is None else f"{where}.schema"
        raise ParameterError(missing, "is missing; give a JSON Schema")
    return Constraint.schema(holder["schema"], f"{where}.schema")


def constrained_answer(
    body: ChatBody, params: SamplingParams, form: AnswerFormat, tokenizer: Tokenizer, prompt: str, *, has_tools: bool
) -> SamplingParams:
    """Parameters of a chat, whose answer is constrained once the model has thought. prompt: as the template has it.
    Raises RequestError or ParameterError for what cannot be constrained yet."""
    constraint = params.constraint
    if has_tools:
        constraint = calls_constraint(body, form, constraint)
    if constraint is None:
        return replace(params, structured_outputs=None)
    param = constraint.param.partition(".")[0]
    if body.continue_final_message:
        message = f"{param}: is not supported yet for an answer that goes on with the last message"
        raise RequestError(message, param=param, code="unsupported_parameter")
    if form.channels:
        message = f"{param}: is not supported yet for a model that answers in channels"
        raise RequestError(message, param=param, code="unsupported_parameter")
    return replace(params, structured_outputs=_after_thought(constraint, form, tokenizer, prompt))


def answer_params(
    tools: Sequence[Any], form: AnswerFormat, tokenizer: Tokenizer, params: SamplingParams, prompt: str
) -> SamplingParams:
    """Parameters of a chat that no HTTP request asked for. tools: of OpenAI's form, checked; prompt: as the template
    has it. Raises ParameterError."""
    params = form.offering(schemas_of(tools)).params(params, tokenizer)
    if not tools and params.constraint is None:
        return params
    try:
        body = ChatBody(messages=[], tools=msgspec.convert([*tools], list[Tool]))
        return constrained_answer(
            body, params, form, tokenizer, prompt, has_tools=form.calls is not None and bool(tools)
        )
    except msgspec.ValidationError as error:
        raise ParameterError("tools", str(error)) from None
    except RequestError as error:
        param = error.param or "structured_outputs"
        raise ParameterError(param, error.message.removeprefix(f"{param}: ")) from None


def _after_thought(constraint: Constraint, form: AnswerFormat, tokenizer: Tokenizer, prompt: str) -> Constraint:
    if form.thoughts is None:
        return constraint
    thinking, tags = form.thinks(prompt), form.thoughts
    begin = None if thinking else tokenizer.added_ids.get(tags.begin)
    if not thinking and (prompt.rstrip().endswith(tags.end) or begin is None):
        return constraint
    return constraint.after_thought(tags.end, begin)
