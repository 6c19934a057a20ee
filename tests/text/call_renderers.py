"""Calls as models write them, form by form: written by hand from what the families publish, not from the parsers."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from jaxinfer.text.answer.calls import json_calls, named_calls, xml_calls
from jaxinfer.text.answer.calls.form import CallForm

Calls = Sequence[tuple[str, dict[str, Any]]]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _text(value: object) -> str:
    return value if isinstance(value, str) else _json(value)


def _objects(calls: Calls, key: str = "arguments") -> list[str]:
    return [f'{{"name": {_json(name)}, "{key}": {_json(arguments)}}}' for name, arguments in calls]


def hermes(calls: Calls) -> str:
    return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in _objects(calls))


def mistral_list(calls: Calls) -> str:
    return f"[TOOL_CALLS][{', '.join(_objects(calls))}]"


def mistral(calls: Calls) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{_json(arguments)}" for name, arguments in calls)


def granite(calls: Calls) -> str:
    return f"<|tool_call|>[{', '.join(_objects(calls))}]"


def phi(calls: Calls) -> str:
    return f"<|tool_call|>[{', '.join(_objects(calls))}]<|/tool_call|>"


def apriel(calls: Calls) -> str:
    return f"<tool_calls>[{', '.join(_objects(calls))}]</tool_calls>"


def cohere(calls: Calls) -> str:
    lines = (f'{{"tool_call_id": "{i}", "tool_name": {_json(name)}, "parameters": {_json(arguments)}}}'
             for i, (name, arguments) in enumerate(calls))  # fmt: skip
    return "<|START_ACTION|>[\n    " + ",\n    ".join(lines) + "\n]<|END_ACTION|>"


def intern(calls: Calls) -> str:
    return "\n".join(f"<|action_start|><|plugin|>\n{each}\n<|action_end|>" for each in _objects(calls, "parameters"))


def llama(calls: Calls) -> str:
    return "; ".join(_objects(calls, "parameters"))


def deepseek_v3(calls: Calls) -> str:
    found = (f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{_json(arguments)}\n```<｜tool▁call▁end｜>"
             for name, arguments in calls)  # fmt: skip
    return "<｜tool▁calls▁begin｜>" + "\n".join(found) + "<｜tool▁calls▁end｜>"


def deepseek_v31(calls: Calls) -> str:
    found = (
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{_json(arguments)}<｜tool▁call▁end｜>" for name, arguments in calls
    )
    return "<｜tool▁calls▁begin｜>" + "".join(found) + "<｜tool▁calls▁end｜>"


def kimi(calls: Calls) -> str:
    found = (f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{_json(arguments)}<|tool_call_end|>"
             for i, (name, arguments) in enumerate(calls))  # fmt: skip
    return "<|tool_calls_section_begin|>" + "".join(found) + "<|tool_calls_section_end|>"


def functionary(calls: Calls) -> str:
    return "\n".join(f"<function={name}>{_json(arguments)}</function>" for name, arguments in calls)


def qwen(calls: Calls) -> str:
    found = ["".join(f"<parameter={key}>\n{_text(value)}\n</parameter>\n" for key, value in arguments.items())
             for _, arguments in calls]  # fmt: skip
    return "\n".join(f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"
                     for (name, _), inner in zip(calls, found, strict=True))  # fmt: skip


def seed(calls: Calls) -> str:
    found = ["".join(f"<parameter={key}>{_text(value)}</parameter>\n" for key, value in arguments.items())
             for _, arguments in calls]  # fmt: skip
    return "\n".join(f"<seed:tool_call>\n<function={name}>\n{inner}</function>\n</seed:tool_call>"
                     for (name, _), inner in zip(calls, found, strict=True))  # fmt: skip


def minimax(calls: Calls) -> str:
    found = ["".join(f'<parameter name="{key}">{_text(value)}</parameter>\n' for key, value in arguments.items())
             for _, arguments in calls]  # fmt: skip
    inner = "".join(f'<invoke name="{name}">\n{each}</invoke>\n'
                    for (name, _), each in zip(calls, found, strict=True))  # fmt: skip
    return f"<minimax:tool_call>\n{inner}</minimax:tool_call>"


def glm(calls: Calls) -> str:
    found = ["".join(f"<arg_key>{key}</arg_key>\n<arg_value>{_text(value)}</arg_value>\n"
                     for key, value in arguments.items()) for _, arguments in calls]  # fmt: skip
    return "\n".join(f"<tool_call>{name}\n{inner}</tool_call>"
                     for (name, _), inner in zip(calls, found, strict=True))  # fmt: skip


RENDERERS: dict[str, tuple[CallForm, Callable[[Calls], str]]] = {
    "hermes": (json_calls.HERMES, hermes),
    "mistral list": (json_calls.MISTRAL_LIST, mistral_list),
    "granite": (json_calls.GRANITE, granite),
    "phi": (json_calls.PHI, phi),
    "apriel": (json_calls.APRIEL, apriel),
    "cohere": (json_calls.COHERE, cohere),
    "intern": (json_calls.INTERN, intern),
    "llama": (json_calls.LLAMA, llama),
    "mistral": (named_calls.MISTRAL, mistral),
    "deepseek v3": (named_calls.DEEPSEEK_V3, deepseek_v3),
    "deepseek v3.1": (named_calls.DEEPSEEK_V31, deepseek_v31),
    "kimi": (named_calls.KIMI, kimi),
    "functionary": (named_calls.FUNCTIONARY, functionary),
    "qwen": (xml_calls.QWEN, qwen),
    "seed": (xml_calls.SEED, seed),
    "minimax": (xml_calls.MINIMAX, minimax),
    "glm": (xml_calls.GLM, glm),
}
"""Each form, and how models write it."""
