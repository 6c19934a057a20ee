"""What a text must be, from every field that can say it, as one Constraint."""

from dataclasses import replace
from typing import Any

from jaxinfer.constraint import Constraint
from jaxinfer.errors import ParameterError
from jaxinfer.sampling import SamplingParams
from jaxinfer.serving.bodies.chat_schema import ChatBody
from jaxinfer.serving.bodies.schema import GenerateBody
from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.requests.endpoint import ModelSide
from jaxinfer.serving.requests.tool_choice import calls_constraint
from jaxinfer.text.answer import THINK, THOUGHT, is_thinking
from jaxinfer.text.call_syntax import CallSyntax
from jaxinfer.text.tokenizer import Tokenizer

_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
"""vLLM's older fields, and the keys of `structured_outputs` that they are."""
_KEYS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
_SPACING = ("whitespace_pattern", "disable_any_whitespace")
_TYPES = ("text", "json_object", "json_schema", "regex", "grammar", "structural_tag")


def constraint_of(body: GenerateBody) -> Constraint | None:
    """None where the text is free. Raises ParameterError that names the field, and its part."""
    found = [
        *_response_format(body.response_format),
        *_structured_outputs(body.structured_outputs),
        *(each for name, key in _GUIDED.items() for each in _of_key(key, getattr(body, name), name)),
    ]
    pattern = body.guided_whitespace_pattern
    if len(found) > 1:
        names = " and ".join(each.param.partition(".")[0] for each in found[:2])
        raise ParameterError(found[1].param.partition(".")[0], f"{names} both say what the text must be; give one")
    if pattern is not None and not found:
        raise ParameterError("guided_whitespace_pattern", "needs guided_json")
    return None if not found else _with_whitespace(found[0], pattern, "guided_whitespace_pattern")


def _response_format(value: Any) -> list[Constraint]:
    """OpenAI's, with the schema in `json_schema`, or beside `type` as in the Responses API."""
    if value is None:
        return []
    name = "response_format"
    _check_object(value, name)
    kind = value.get("type")
    if kind not in _TYPES:
        raise ParameterError(f"{name}.type", f"{kind!r} must be one of {', '.join(_TYPES)}")
    if kind == "text":
        return []
    if kind == "json_object":
        schema = value.get("schema")
        return _of_key("json_object", True, name) if schema is None else _of_key("json", schema, f"{name}.schema")
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
    _check_object(holder, where)
    if "schema" not in holder:
        raise ParameterError(f"{where}.schema", "is missing; give a JSON Schema")
    return Constraint.schema(holder["schema"], f"{where}.schema")


def _structured_outputs(value: Any) -> list[Constraint]:
    """vLLM's: one of its keys, and what may stand between JSON tokens."""
    if value is None:
        return []
    name = "structured_outputs"
    _check_object(value, name)
    given = {key: each for key, each in value.items() if each is not None and each is not False}
    if unknown := [key for key in given if key not in (*_KEYS, *_SPACING)]:
        allowed = ", ".join((*_KEYS, *_SPACING))
        raise ParameterError(f"{name}.{unknown[0]}", f"is not supported; {allowed} are")
    pattern, fixed = (given.pop(key, None) for key in _SPACING)
    found = [each for key, inner in given.items() for each in _of_key(key, inner, f"{name}.{key}")]
    if len(found) != 1:
        raise ParameterError(name, f"has {len(found)} of {', '.join(_KEYS)}; give one")
    if fixed is not None:
        return [_with_fixed_whitespace(found[0], fixed, pattern, f"{name}.disable_any_whitespace")]
    return [_with_whitespace(found[0], pattern, f"{name}.whitespace_pattern")]


def _check_object(value: Any, name: str) -> None:
    if not isinstance(value, dict):
        raise ParameterError(name, f"must be an object, not {type(value).__name__}")


def _of_key(key: str, value: Any, param: str) -> list[Constraint]:
    if value is None or (key == "json_object" and value is False):
        return []
    if key == "json":
        return [Constraint.schema(value, param)]
    if key == "json_object":
        if value is not True:
            raise ParameterError(param, "must be true or false")
        return [Constraint("json_object", param=param)]
    if key == "choice":
        return [Constraint.choice(value, param)]
    if key == "structural_tag":
        return [Constraint.structural_tag(value, param)]
    return [Constraint.text("regex" if key == "regex" else "grammar", value, param)]


def _with_whitespace(constraint: Constraint, pattern: Any, param: str) -> Constraint:
    if pattern is None:
        return constraint
    _check_json(constraint, param)
    if not isinstance(pattern, str) or not pattern:
        raise ParameterError(param, "must be a string that is not empty")
    return constraint.with_whitespace(pattern)


def _with_fixed_whitespace(constraint: Constraint, fixed: Any, pattern: Any, param: str) -> Constraint:
    _check_json(constraint, param)
    if fixed is not True:
        raise ParameterError(param, "must be true or false")
    if pattern is not None:
        raise ParameterError(param, "contradicts whitespace_pattern; give one of them")
    return constraint.with_whitespace("")


def _check_json(constraint: Constraint, param: str) -> None:
    if constraint.kind not in ("json_schema", "json_object"):
        raise ParameterError(param, f"goes with JSON, not with {constraint.kind}")


def constrained_answer(
    body: ChatBody, params: SamplingParams, side: ModelSide, prompt: str, *, has_tools: bool
) -> SamplingParams:
    """Parameters of a chat, whose answer is constrained once the model has thought. prompt: as the template has it.
    Raises RequestError or ParameterError for what cannot be constrained yet."""
    constraint, form = params.structured_outputs, side.answer_form
    if has_tools:
        constraint = calls_constraint(body, form, constraint)
        if constraint is not None and form.call_syntax is not None:
            params = _with_tags_shown(params, form.call_syntax, side.text.tokenizer)
    if constraint is None:
        return replace(params, structured_outputs=None)
    param = constraint.param.partition(".")[0]
    if body.continue_final_message:
        message = f"{param}: is not supported yet for an answer that goes on with the last message"
        raise RequestError(message, param=param, code="unsupported_parameter")
    if form.channels:
        message = f"{param}: is not supported yet for a model that answers in channels"
        raise RequestError(message, param=param, code="unsupported_parameter")
    return replace(params, structured_outputs=_after_thought(constraint, side, prompt))


def _after_thought(constraint: Constraint, side: ModelSide, prompt: str) -> Constraint:
    tokenizer = side.text.tokenizer
    thinking = is_thinking(prompt, continued=False)
    begin = None if thinking else tokenizer.added_ids.get(THINK)
    thought = prompt.rstrip().endswith(THOUGHT)
    if not side.answer_form.reasoning or (not thinking and (thought or begin is None)):
        return constraint
    return constraint.after_thought(THOUGHT, begin)


def _with_tags_shown(params: SamplingParams, syntax: CallSyntax, tokenizer: Tokenizer) -> SamplingParams:
    """Where a tag of calls is a special token, the text must have it all the same."""
    written = f"{syntax.trigger}{syntax.head}{syntax.end}"
    special = any(token in written and each in tokenizer.special_ids for token, each in tokenizer.added_ids.items())
    return replace(params, skip_special_tokens=False) if special else params
