"""Calls whose name stands before their arguments, a JSON object, each part between marks."""

import re
from dataclasses import dataclass

from jaxinfer.structural_tag import Node
from jaxinfer.text.answer.calls.argument_types import ArgumentTypes
from jaxinfer.text.answer.calls.form import Callable, CallForm
from jaxinfer.text.answer.json_strings import DECODER
from jaxinfer.text.answer.parts import ToolCallPart


@dataclass(frozen=True, kw_only=True)
class NamedCalls(CallForm):
    """`open` name `middle` {…} `close`, one after another.

    number: what a constrained answer has behind a name, a colon and a number; others are read, too.
    """

    open: str = ""
    middle: str
    close: str = ""
    number: str = ""

    def parse(self, text: str, types: ArgumentTypes) -> list[ToolCallPart] | None:
        rest, calls = self.inner(text).strip(), list[ToolCallPart]()
        while rest:
            head = self._head.match(self.inner(rest))
            rest = self.inner(rest)
            if head is None:
                return None
            try:
                said, end = DECODER.raw_decode(rest, head.end())
            except (ValueError, RecursionError):
                return None
            if not isinstance(said, dict):
                return None
            calls.append(ToolCallPart(head["name"], rest[head.end() : end]))
            rest = rest[end:].lstrip()
            if self.close.strip() and not rest.startswith(self.close.strip()):
                return calls if not rest else None  # the answer may end before the mark
            rest = rest.removeprefix(self.close.strip()).lstrip()
        return calls or None

    @property
    def marks(self) -> tuple[str, ...]:
        return (*super().marks, self.open, self.middle, self.close)

    def tag(self, function: Callable, before: str = "", after: str = "") -> Node:
        head = f"{before}{self.open}{function.name}{self.number}{self.middle}"
        return {"type": "tag", "begin": head, "content": function.arguments(""), "end": self.close + after}

    @property
    def _head(self) -> re.Pattern[str]:
        opening, middle = (r"\s*".join(map(re.escape, mark.split())) for mark in (self.open, self.middle))
        number = r"(?::\d+)?" if self.number else ""
        return re.compile(rf"{opening}\s*(?P<name>[A-Za-z0-9_.-]+?){number}{_CALL_ID}\s*{middle}\s*(?=\{{)")


_CALL_ID = r"(?:\[CALL_ID\][A-Za-z0-9]*)?"

MISTRAL = NamedCalls(
    title="Mistral",
    names=("mistral",),
    shown=("[TOOL_CALLS]", "[ARGS]"),
    begins=("[TOOL_CALLS]",),
    between="",
    middle="[ARGS]",
)
"""From version 11 of its tokenizer on. Each call begins anew."""
DEEPSEEK_V3 = NamedCalls(
    title="DeepSeek V3 or R1",
    names=("deepseek_v3",),
    shown=("tool▁calls▁begin", "```json"),
    begins=("<｜tool▁calls▁begin｜>",),
    end="<｜tool▁calls▁end｜>",
    wraps=True,
    open="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    middle="\n```json\n",
    close="\n```<｜tool▁call▁end｜>",
)
DEEPSEEK_V31 = NamedCalls(
    title="DeepSeek V3.1",
    names=("deepseek_v31",),
    shown=("tool▁calls▁begin",),
    begins=("<｜tool▁calls▁begin｜>",),
    end="<｜tool▁calls▁end｜>",
    wraps=True,
    between="",
    open="<｜tool▁call▁begin｜>",
    middle="<｜tool▁sep｜>",
    close="<｜tool▁call▁end｜>",
)
KIMI = NamedCalls(
    title="Kimi K2",
    names=("kimi_k2",),
    shown=("<|tool_calls_section_begin|>",),
    begins=("<|tool_calls_section_begin|>",),
    end="<|tool_calls_section_end|>",
    wraps=True,
    between="",
    open="<|tool_call_begin|>functions.",
    number=":0",
    middle="<|tool_call_argument_begin|>",
    close="<|tool_call_end|>",
)
FUNCTIONARY = NamedCalls(
    title="Functionary",
    names=("functionary",),
    shown=("<function=", "</function>"),
    begins=("<function=",),
    end="</function>",
    middle=">",
)
"""Version 3.1, and Llama 3.1 with functions of its own."""
