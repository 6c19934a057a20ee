"""Calls whose arguments are elements, each with its value as text: what is no string is JSON there."""

import json
import re
from dataclasses import dataclass
from typing import Any

from jaxinfer.structural_tag import Node
from jaxinfer.text.answer.calls.argument_types import ArgumentTypes, types_of_properties
from jaxinfer.text.answer.calls.form import Callable, CallForm, const, optional
from jaxinfer.text.answer.json_strings import DECODER
from jaxinfer.text.answer.parts import ToolCallPart


@dataclass(frozen=True, kw_only=True)
class XmlCalls(CallForm):
    """A head with the name, elements of arguments, and a tail.

    head, tail: around the arguments of a call; `{}` is its name. key: begins an argument; `{}` is its name. close: ends
    it. pad: white space around a value, which is none of it.
    """

    head: str
    tail: str
    key: str
    close: str
    pad: str = ""
    needs_schema = True

    def parse(self, text: str, types: ArgumentTypes) -> list[ToolCallPart] | None:
        if not text.endswith(self.end):
            return None  # of a call that was cut off, arguments may be missing
        rest, calls = self.inner(text).strip(), list[ToolCallPart]()
        # Names take all that they can: with less, white space could be matched in many ways.
        head, element = _pattern(self.head, r"[\w.-]++"), _pattern(self.key, r"[^<>\"\n]++")
        while rest:
            found = head.match(rest)
            if found is None:
                return None
            name, said, rest = found[1].strip(), dict[str, str](), rest[found.end() :].lstrip("\n")
            while argument := element.match(rest):
                key, begin = argument[1].strip(), argument.end()
                allowed = types.get(name, {}).get(key, frozenset())
                end = rest.find(self.close, begin if "string" in allowed or not allowed else _past_json(rest, begin))
                if end < 0:
                    return None
                said[key] = _as_json(self._unpadded(rest[begin:end]), allowed)
                rest = rest[end + len(self.close) :].lstrip()
            if self.tail.strip() and not rest.startswith(self.tail.strip()):
                return None
            members = (f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in said.items())
            if not said and types and name not in types:
                return None  # without arguments nothing tells it from a text
            calls.append(ToolCallPart(name, f"{{{', '.join(members)}}}"))
            rest = rest.removeprefix(self.tail.strip()).lstrip()
            if rest and not self.wraps:
                return None
        return calls or None

    def _unpadded(self, text: str) -> str:
        return text.removeprefix(self.pad).removesuffix(self.pad)

    def tag(self, function: Callable, before: str = "", after: str = "") -> Node:
        required, types = function.schema.get("required", ()), types_of_properties(function.schema)
        properties = {**function.schema.get("properties", {}), **{name: {} for name in required if name not in types}}
        elements = [
            self._element(name, _value_node(of, types.get(name, frozenset()), function), needed=name in required)
            for name, of in properties.items()
        ]
        content = {"type": "sequence", "elements": elements} if elements else const("")
        head = before + self.head.format(function.name)
        return {"type": "tag", "begin": head, "content": content, "end": self.tail + after}

    def _element(self, name: str, value: Node, *, needed: bool) -> Node:
        """The element of an argument. Arguments stand in the order of their schemas. A string may be any text without
        the mark that ends it: patterns and lengths are not held to."""
        made = {"type": "tag", "begin": self.key.format(name) + self.pad, "content": value,
                "end": self.pad + self.close + self.between}  # fmt: skip
        return made if needed else optional(made)


def _pattern(text: str, name: str) -> re.Pattern[str]:
    """A pattern of a mark that has a name; white space in the mark is any."""
    before, after = (r"\s*".join(map(re.escape, part.split())) for part in text.split("{}"))
    return re.compile(rf"\s*+{before}\s*+({name})\s*+{after}")


def _value_node(schema: Any, types: frozenset[str], function: Callable) -> Node:
    given = schema if isinstance(schema, dict) else {}
    values = given.get("enum")
    if isinstance(values, list) and values and all(isinstance(each, str) for each in values):
        return {"type": "or", "elements": [const(each) for each in values]}
    if "string" in types or not types:
        return {"type": "any_text", "excludes": []}
    shared = {name: function.schema[name] for name in ("$defs", "definitions") if name in function.schema}
    return {"type": "json_schema", "json_schema": {**shared, **given}, "whitespace": "", "param": function.param}


def _past_json(text: str, at: int) -> int:
    """The index behind a JSON value, whose strings may hold any mark; `at` where none begins."""
    begin = at + len(text[at:]) - len(text[at:].lstrip())
    try:
        return DECODER.raw_decode(text, begin)[1]
    except (ValueError, RecursionError):
        return at


def _as_json(text: str, types: frozenset[str]) -> str:
    """Return the JSON of the value that a text is: of a string if its argument may be one. types: it may have; none:
    any."""
    value = _WORDS.get(text.strip(), text.strip())
    if "string" not in types and types:
        try:
            DECODER.decode(value)
        except (ValueError, RecursionError):
            return json.dumps(text, ensure_ascii=False)
        return value
    return "null" if value == "null" and "null" in types else json.dumps(text, ensure_ascii=False)


_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Python's words, which models write."""

QWEN = XmlCalls(
    title="Qwen3-Coder",
    names=("qwen3_coder", "qwen3_xml"),
    shown=("<function=", "<parameter=", "<tool_call>"),
    begins=("<tool_call>",),
    end="</tool_call>",
    head="\n<function={}>\n",
    tail="</function>\n",
    key="<parameter={}>",
    close="</parameter>",
    pad="\n",
)
SEED = XmlCalls(
    title="Seed-OSS",
    names=("seed_oss",),
    shown=("<seed:tool_call>",),
    begins=("<seed:tool_call>",),
    end="</seed:tool_call>",
    head="\n<function={}>\n",
    tail="</function>\n",
    key="<parameter={}>",
    close="</parameter>",
)
MINIMAX = XmlCalls(
    title="MiniMax-M2",
    names=("minimax_m2",),
    shown=("<minimax:tool_call>",),
    begins=("<minimax:tool_call>",),
    end="</minimax:tool_call>",
    wraps=True,
    head='\n<invoke name="{}">\n',
    tail="</invoke>\n",
    between="",
    key='<parameter name="{}">',
    close="</parameter>",
)
GLM = XmlCalls(
    title="GLM-4.5",
    names=("glm45", "glm47"),
    shown=("<tool_call>", "<arg_key>"),
    begins=("<tool_call>",),
    end="</tool_call>",
    head="{}\n",
    tail="",
    key="<arg_key>{}</arg_key>\n<arg_value>",
    close="</arg_value>",
)
