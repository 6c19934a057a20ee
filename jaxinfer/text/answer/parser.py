"""AnswerParser: what a model says in a chat, taken apart into reasoning, content and tool calls."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jaxinfer.sampling import SamplingParams
from jaxinfer.text.answer.call_syntax import HERMES, CallSyntax
from jaxinfer.text.answer.harmony import FINAL, FUNCTIONS, HarmonyParser
from jaxinfer.text.answer.json_strings import DECODER, JsonStrings, ObjectText, json_object, may_become_object
from jaxinfer.text.answer.parts import (
    TOLD_AFTER,
    AnswerPart,
    Parser,
    ToolCallPart,
    WholeCalls,
    arguments_text,
    beginning_of,
    member_text,
)

THINK, THOUGHT = "<think>", "</think>"
CALL, CALLED = HERMES.trigger, "</tool_call>"

_State = Callable[[list[AnswerPart]], bool]


def is_thinking(prompt: str, *, continued: bool) -> bool:
    """Return whether the model begins its answer inside reasoning. continued: the prompt ends with an unfinished
    message."""
    return prompt.rfind(THINK) > prompt.rfind(THOUGHT) if continued else prompt.rstrip().endswith(THINK)


class AnswerFormat(NamedTuple):
    """Format in which a model's text is parsed.

    reasoning: `<think> … </think>` before the answer (Qwen3, DeepSeek-R1). tools: `<tool_call>` with
    `{"name": …, "arguments": {…}}` inside (the Hermes form, Qwen2.5 and Qwen3). channels: both are messages in
    channels instead (the harmony format, gpt-oss).
    """

    reasoning: bool = False
    tools: bool = False
    channels: bool = False

    @classmethod
    def of_template(cls, template: str) -> "AnswerFormat":
        """Infer the model's format from its chat template; other forms of tool calls are not mistaken for this one."""
        if FINAL in template:
            return cls(reasoning=True, tools=FUNCTIONS in template, channels=True)
        other = any(mark in template for mark in _OTHER_CALLS)
        return cls(THOUGHT in template, _HERMES_CALL.search(template) is not None and not other)

    @property
    def call_syntax(self) -> CallSyntax | None:
        """Syntax of calls; None if they are not parsed, or cannot be constrained yet."""
        return HERMES if self.tools and not self.channels else None

    def parser(self, *, thinking: bool = False) -> Parser:
        """A parser for one answer. thinking: the prompt itself has opened `<think>`."""
        if self.channels:
            return HarmonyParser(reasoning=self.reasoning, tools=self.tools)
        return AnswerParser(self, thinking=thinking)

    def params(self, params: SamplingParams) -> SamplingParams:
        """Parameters with which the text has the tags: those of channels are special tokens."""
        return dataclasses.replace(params, skip_special_tokens=False) if self.channels else params


_HERMES_CALL = re.compile(re.escape(CALL) + r"""[^<]{0,60}?\{\\?["']name\\?["']\s*:""")
"""A call as templates show it: the tag, perhaps pieces of a template, and an object that begins with a name."""
_OTHER_CALLS = ("<function=", "<arg_key>", "<parameter=", "<tool_calls>")


class AnswerParser:
    """Takes text apart as it arrives; the result does not depend on how it is cut into pieces.

    Text is held back while it may begin a tag. Line breaks around tags belong to the tags. A call whose arguments are
    no JSON object within their first `TOLD_AFTER` characters stays in the content as it was written; of others the
    arguments come as they are written. A thought may follow another at once; a tag that ends none is dropped where it
    begins the answer or a line. thinking: the prompt itself has opened `<think>`.
    """

    def __init__(self, form: AnswerFormat, *, thinking: bool = False):
        self._form = form
        self._held = ""
        self._gap = ""  # white space before a call, which stays where it turns out to be none
        self._state = self._opening if form.reasoning and thinking else self._beginning
        self._strip = False
        self._searched = 0  # where the end of a call is looked for
        self._strings = JsonStrings(0)  # of that call
        self._may_tell = True  # whether the arguments of that call may turn out to be an object
        self._arguments = ObjectText()  # of a call that is told
        self._said = False  # something of the content was told
        self._parted = False  # a call stood between that and what follows
        self._thought = form.reasoning and thinking  # a thought has begun or ended
        self._reasoned = self._new_thought = False  # something of a thought was told; none of this one

    def push(self, text: str) -> list[AnswerPart]:
        """Return the parts that are certain now."""
        if not text:
            return []
        self._held += text
        parts: list[AnswerPart] = []
        self._go_on(parts)
        return parts

    def _go_on(self, parts: list[AnswerPart]) -> None:
        while self._state(parts):
            pass

    def flush(self) -> list[AnswerPart]:
        """Return the parts that were held back: the text has ended."""
        parts: list[AnswerPart] = []
        while self._state == self._calling and (end := self._held.find(CALLED)) >= 0:
            if _call(self._held.removeprefix(CALL)):
                break
            self._take_call(end, parts)
            self._go_on(parts)
        return parts + self._rest()

    def _rest(self) -> list[AnswerPart]:
        held, self._held = self._held, ""
        if self._state == self._calling:
            return [_call(held.removeprefix(CALL)) or self._content(self._gap + held)]
        if self._state == self._telling:
            return [AnswerPart(arguments=held)] if held else []
        if self._state == self._closing:
            tail = held[: len(held) - beginning_of(CALLED, held)]
            return [] if not tail.strip() or _ends_call(tail) else [self._content(tail)]
        if self._state in (self._opening, self._thinking):
            return [self._reasoning(held)] if held.strip() else []
        if self._state == self._after_thought:
            held = held.lstrip()
        return [self._content(held)] if held else []

    # Each state takes what it can from `_held` and tells whether another state has to go on.

    def _beginning(self, parts: list[AnswerPart]) -> bool:
        if not self._form.reasoning:
            self._state = self._speaking
            return True
        return self._take_tag({THINK: self._opening, THOUGHT: self._after_thought}, self._speaking)

    def _opening(self, parts: list[AnswerPart]) -> bool:
        """Inside of a thought of which nothing has come: the tag may be there once more."""
        self._thought, self._strip, self._new_thought = True, True, True
        return self._take_tag({THINK: self._opening}, self._thinking)

    def _thinking(self, parts: list[AnswerPart]) -> bool:
        text, found = self._until(_END_OF_THOUGHT, THOUGHT)
        if text:
            parts.append(self._reasoning(text))
        if found:
            self._state, self._parted = self._after_thought, self._said
        return bool(found)

    def _after_thought(self, parts: list[AnswerPart]) -> bool:
        self._thought, self._strip = True, True
        return self._take_tag({THINK: self._opening, THOUGHT: self._after_thought}, self._speaking)

    def _speaking(self, parts: list[AnswerPart]) -> bool:
        tags = [CALL] * self._form.tools + [THOUGHT] * (self._form.reasoning and not self._thought)
        if tags:
            text, found = self._until(_MARKS[tuple(tags)], *tags)
        else:
            text, found = self._strip_start(self._held), ""
            self._held = ""
        if text:
            parts.append(self._content(text))
        if found == CALL:
            self._held, self._state, self._searched = CALL + self._held, self._calling, len(CALL)
            self._strings, self._may_tell = JsonStrings(len(CALL)), True
        elif found:
            self._state, self._parted = self._after_thought, True
        return bool(found)

    def _calling(self, parts: list[AnswerPart]) -> bool:
        if self._begin_telling(parts):
            return True
        end = self._end_of_call()
        if end < 0:
            return False
        self._take_call(end, parts)
        return True

    def _begin_telling(self, parts: list[AnswerPart]) -> bool:
        """Tells a call of which the name and enough of the arguments are there."""
        head = _HEAD.match(self._held) if self._may_tell else None
        if head is None or len(self._held) < head.end() + TOLD_AFTER:
            return False
        self._may_tell = may_become_object(self._held[head.end() : head.end() + TOLD_AFTER])
        if not self._may_tell:
            return False
        parts.append(AnswerPart(tool_call=ToolCallPart(DECODER.decode(head[1]), "")))
        self._held, self._arguments = self._held[head.end() :], ObjectText()
        self._state = self._telling
        return True

    def _telling(self, parts: list[AnswerPart]) -> bool:
        count = self._arguments.read(self._held)
        text, self._held = self._held[:count], self._held[count:]
        if self._held and not self._arguments.ended and not CALLED.startswith(self._held[: len(CALLED)]):
            text, self._held = text + self._held[0], self._held[1:]
        if text:
            parts.append(AnswerPart(arguments=text))
        if self._arguments.ended or self._held.startswith(CALLED):
            self._state = self._closing
        return self._state == self._closing or (bool(self._held) and not CALLED.startswith(self._held))

    def _closing(self, parts: list[AnswerPart]) -> bool:
        """Behind the arguments of a call that was told."""
        end = self._held.find(CALLED)
        if end < 0:
            return False
        tail, self._held = self._held[:end], self._held[end + len(CALLED) :]
        self._state, self._strip, self._parted = self._speaking, True, True
        if tail and not _ends_call(tail):
            parts.append(self._content(tail))
        return True

    def _end_of_call(self) -> int:
        """Return the index in `_held` of the tag that ends a call; below 0: not yet. Inside a JSON string a tag ends
        nothing."""
        while (end := self._held.find(CALLED, self._searched)) >= 0:
            inside = self._strings.is_inside(self._held, end)
            if inside is None:
                return self._held.find(CALLED)  # it is no JSON: the first one ends it
            if not inside:
                return end
            self._searched = end + len(CALLED)
        self._searched = max(self._searched, len(self._held) - len(CALLED) + 1)
        return -1

    def _take_call(self, end: int, parts: list[AnswerPart]) -> None:
        raw, self._held = self._held[: end + len(CALLED)], self._held[end + len(CALLED) :]
        call = _call(raw[len(CALL) : -len(CALLED)])
        parts.append(call or self._content(self._gap + raw))
        self._state, self._strip, self._parted = self._speaking, call is not None, call is not None

    def _content(self, text: str) -> AnswerPart:
        between = "\n" if self._parted and self._said else ""
        self._said, self._parted = True, False
        return AnswerPart(content=between + text)

    def _reasoning(self, text: str) -> AnswerPart:
        between = "\n" if self._reasoned and self._new_thought else ""
        self._new_thought, self._reasoned = False, True
        return AnswerPart(reasoning=between + text)

    def _take_tag(self, states: Mapping[str, _State], otherwise: _State) -> bool:
        """Goes to the state of a tag that `_held` begins with, or to another; waits where it may begin with one."""
        text = self._held.lstrip()
        tag = next((tag for tag in states if text.startswith(tag)), "")
        if not tag and any(tag.startswith(text) for tag in states):
            return False
        if tag:
            self._held = text[len(tag) :]
        self._state = states[tag] if tag else otherwise
        return True

    def _until(self, pattern: re.Pattern[str], *tags: str) -> tuple[str, str]:
        """Takes the text before a match, or what cannot belong to one of the tags; and the match, or nothing."""
        text = self._strip_start(self._held)
        found = pattern.search(text)
        if found is not None:
            shown, self._held = text[: found.start()].rstrip(), text[found.end() :]
            self._gap = text[len(shown) : found.start()]
            return shown, found.group()
        # NOTE: white space before a tag belongs to it, and is shown once something else follows.
        kept = len(text[: len(text) - max(beginning_of(tag, text) for tag in tags)].rstrip())
        self._held = text[kept:]
        return text[:kept], ""

    def _strip_start(self, text: str) -> str:
        if self._strip:
            text = text.lstrip()
            self._strip = not text
        return text


_END_OF_THOUGHT = re.compile(re.escape(THOUGHT))
_STRAY = rf"(?<=\n){re.escape(THOUGHT)}"
_MARKS = {
    (CALL,): re.compile(re.escape(CALL)),
    (THOUGHT,): re.compile(_STRAY),
    (CALL, THOUGHT): re.compile(f"{re.escape(CALL)}|{_STRAY}"),
}
_HEAD = re.compile(
    re.escape(CALL) + r"""\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)"""
)
"""A call up to its arguments."""


class ReasoningTokens:
    """Counts the tokens between `<think>` and `</think>`, for tokenizers in which each of the two is one token."""

    def __init__(self, begin: int, end: int, *, thinking: bool = False):
        self.count = 0
        self._begin = begin
        self._end = end
        self._inside = thinking

    def push(self, token_ids: Sequence[int]) -> None:
        """Takes the answer's next tokens."""
        for token in token_ids:
            if token in (self._begin, self._end):
                self._inside = token == self._begin
            elif self._inside:
                self.count += 1


class ParsedAnswer(NamedTuple):
    """A whole answer, taken apart. content and reasoning are empty where there are none."""

    content: str
    reasoning: str
    tool_calls: list[ToolCallPart]


def parse_answer(text: str, form: AnswerFormat, *, thinking: bool = False) -> ParsedAnswer:
    """The parts of a text that is whole. thinking: the prompt itself has opened `<think>`."""
    parser = WholeCalls(form.parser(thinking=thinking))
    parts = parser.push(text) + parser.flush()
    calls = [part.tool_call for part in parts if part.tool_call is not None]
    content, reasoning = "".join(part.content for part in parts), "".join(part.reasoning for part in parts)
    return ParsedAnswer(content, reasoning, calls)


def _call(text: str) -> AnswerPart | None:
    """The call that a JSON object tells, or None."""
    try:
        said = DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        return None
    key = "arguments" if "arguments" in said else "parameters"
    # As it is written: a number may be more exact than one of Python's.
    arguments = member_text(text, key) if isinstance(said.get(key), dict) else arguments_text(said.get(key, {}))
    return None if arguments is None else AnswerPart(tool_call=ToolCallPart(said["name"], arguments))


def _ends_call(tail: str) -> bool:
    """Return True if a text behind a call's arguments ends its object."""
    return json_object('{"":{}' + tail) is not None
