"""Calls as JSON objects that hold a name and arguments: one, or a list of them, behind a mark."""

import json
import re
from dataclasses import dataclass

from jaxinfer.structural_tag import Node
from jaxinfer.text.answer.calls.argument_types import ArgumentTypes
from jaxinfer.text.answer.calls.form import Callable, CallForm
from jaxinfer.text.answer.json_strings import DECODER
from jaxinfer.text.answer.parts import ToolCallPart, arguments_text, is_text, member_text


@dataclass(frozen=True, kw_only=True)
class JsonCalls(CallForm):
    """`{"name": …, "arguments": {…}}` behind a mark; a list of them where one mark is for all.

    key, arguments: names of the members that a constrained answer has; others are read, too. first: what it has before
    them. pad: around each object there.
    """

    key: str = "name"
    arguments: str = "arguments"
    first: str = ""
    pad: str = ""
    brackets = ("[", "]")

    def parse(self, text: str, types: ArgumentTypes) -> list[ToolCallPart] | None:
        return self._calls((text.removesuffix(self.end) if text.startswith("{") else self.inner(text)).strip())

    def _calls(self, text: str) -> list[ToolCallPart] | None:
        calls, at, listed = list[ToolCallPart](), 0, text.startswith("[")
        at = _past(text, 1) if listed else 0
        while at < len(text) and text[at] == "{":
            call, at = self._call(text, at)
            if call is None:
                return None
            calls.append(call)
            at = _past(text, at)
        ended = text[at:] == ("]" if listed else "")
        return calls if calls and ended else None

    def _call(self, text: str, at: int) -> tuple[ToolCallPart | None, int]:
        try:
            said, end = DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return None, at
        name = said.get(self.key, said.get("name"))
        key = next((each for each in (self.arguments, "arguments", "parameters") if each in said), None)
        if not is_text(name) or key is None:
            return None, end
        # As it is written: a number may be more exact than one of Python's.
        whole = isinstance(said[key], dict)
        arguments = member_text(text[at:end], key) if whole else arguments_text(said[key])
        return None if arguments is None else ToolCallPart(name, arguments), end

    def tag(self, function: Callable, before: str = "", after: str = "") -> Node:
        mark = "" if before.startswith("{") else before  # which is how the object itself begins
        head = f'{mark}{self.pad}{{{self.first}"{self.key}": {json.dumps(function.name)}, "{self.arguments}": '
        return {"type": "tag", "begin": head, "content": function.arguments(""), "end": f"}}{self.pad}{after}"}


def _past(text: str, at: int) -> int:
    """The index behind white space and separators of calls."""
    found = _BETWEEN.match(text, at)
    assert found is not None
    return found.end()


_BETWEEN = re.compile(r"[\s,;]*")


@dataclass(frozen=True, kw_only=True)
class _HermesCalls(JsonCalls):
    def shows(self, template: str) -> bool:
        return _HERMES_CALL.search(template) is not None


_HERMES_CALL = re.compile(r"""<tool_call>[^<]{0,60}?\{\\?["']name\\?["']\s*:""")
"""A call as templates show it: the tag, perhaps pieces of a template, and an object that begins with a name."""

HERMES = _HermesCalls(
    title="Qwen or Hermes", names=("hermes",), shown=(), begins=("<tool_call>",), end="</tool_call>", pad="\n"
)
MISTRAL_LIST = JsonCalls(
    title="Mistral", names=("mistral",), shown=("[TOOL_CALLS]",), begins=("[TOOL_CALLS]",), wraps=True, between=", "
)
"""Up to version 7 of its tokenizer."""
GRANITE = JsonCalls(
    title="Granite 3",
    names=("granite",),
    shown=("<|tool_call|> followed by a JSON list",),
    begins=("<|tool_call|>",),
    wraps=True,
    between=", ",
)
PHI = JsonCalls(
    title="Phi-4-mini",
    names=("phi4_mini_json",),
    shown=("<|tool_call|>", "<|/tool_call|>"),
    begins=("<|tool_call|>",),
    end="<|/tool_call|>",
    wraps=True,
    between=", ",
)
APRIEL = JsonCalls(
    title="Apriel or Hunyuan",
    names=("apriel", "hunyuan_a13b"),
    shown=("<tool_calls>[{",),
    begins=("<tool_calls>",),
    end="</tool_calls>",
    wraps=True,
    between=", ",
)
COHERE = JsonCalls(
    title="Cohere",
    names=("cohere_command3", "command_r7b"),
    shown=("<|START_ACTION|>",),
    begins=("<|START_ACTION|>",),
    end="<|END_ACTION|>",
    wraps=True,
    between=", ",
    key="tool_name",
    arguments="parameters",
    first='"tool_call_id": "0", ',
)
INTERN = JsonCalls(
    title="InternLM",
    names=("internlm",),
    shown=("<|action_start|>", "<|plugin|>"),
    begins=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
    end="<|action_end|>",
    arguments="parameters",
)
LLAMA = JsonCalls(
    title="Llama 3",
    names=("llama3_json", "llama4_json"),
    shown=('"parameters": dictionary of',),
    begins=('{"name":', "<|python_tag|>"),
    between="; ",
    arguments="parameters",
)
