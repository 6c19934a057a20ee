"""AnswerParser: what a model says in a chat, taken apart into reasoning, content and tool calls."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from jaxinfer.sampling import SamplingParams
from jaxinfer.text.answer_parts import AnswerPart, Parser, ToolCallPart, arguments_text, beginning_of, member_text
from jaxinfer.text.call_syntax import HERMES, CallSyntax
from jaxinfer.text.harmony import FINAL, FUNCTIONS, HarmonyParser
from jaxinfer.text.json_strings import DECODER, JsonStrings

THINK, THOUGHT = "<think>", "</think>"
CALL, CALLED = HERMES.trigger, "</tool_call>"


def is_thinking(prompt: str, *, continued: bool) -> bool:
    """Whether the model begins its answer inside reasoning. continued: the prompt ends with an unfinished message."""
    return prompt.rfind(THINK) > prompt.rfind(THOUGHT) if continued else prompt.rstrip().endswith(THINK)


class AnswerFormat(NamedTuple):
    """What is looked for in a model's text.

    reasoning: `<think> … </think>` before the answer (Qwen3, DeepSeek-R1). tools: `<tool_call>` with
    `{"name": …, "arguments": {…}}` inside (the Hermes form, Qwen2.5 and Qwen3). channels: both are messages in
    channels instead (the harmony format, gpt-oss).
    """

    reasoning: bool = False
    tools: bool = False
    channels: bool = False

    @classmethod
    def of_template(cls, template: str) -> "AnswerFormat":
        """What a chat template shows of the model's own form; other forms of tool calls are not taken for this one."""
        if FINAL in template:
            return cls(reasoning=True, tools=FUNCTIONS in template, channels=True)
        hermes = CALL in template and '"name"' in template.replace('\\"', '"')
        other = any(mark in template for mark in ("<function=", "<arg_key>", "<parameter="))
        return cls(THOUGHT in template, hermes and not other)

    @property
    def call_syntax(self) -> CallSyntax | None:
        """How calls are written; None where they are not taken apart, or cannot be constrained yet."""
        return HERMES if self.tools and not self.channels else None

    def parser(self, *, thinking: bool = False) -> Parser:
        """A parser for one answer. thinking: the prompt itself has opened `<think>`."""
        if self.channels:
            return HarmonyParser(reasoning=self.reasoning, tools=self.tools)
        return AnswerParser(self, thinking=thinking)

    def params(self, params: SamplingParams) -> SamplingParams:
        """Parameters with which the text has the tags: those of channels are special tokens."""
        return dataclasses.replace(params, skip_special_tokens=False) if self.channels else params


class AnswerParser:
    """Takes text apart as it arrives; the result does not depend on how it is cut into pieces.

    Text is held back while it may begin a tag. Line breaks around tags belong to the tags. A call that
    is not valid stays in the content as it was written. thinking: the prompt itself has opened `<think>`.
    """

    def __init__(self, form: AnswerFormat, *, thinking: bool = False):
        self._form = form
        self._held = ""
        self._gap = ""  # white space before a call, which stays where it turns out to be none
        self._state = self._thinking if form.reasoning and thinking else self._beginning
        self._strip = thinking
        self._searched = 0  # where the end of a call is looked for
        self._strings = JsonStrings(0)  # of that call
        self._said = False  # something of the content was told
        self._parted = False  # a call stood between that and what follows

    def push(self, text: str) -> list[AnswerPart]:
        """What can be told now."""
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
        """What was held back: the text has ended."""
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
        if self._state == self._thinking:
            return [AnswerPart(reasoning=held)] if held.strip() else []
        return [self._content(held)] if held else []

    # Each state takes what it can from `_held` and tells whether another state has to go on.

    def _beginning(self, parts: list[AnswerPart]) -> bool:
        text = self._held.lstrip()
        if self._form.reasoning and len(text) < len(THINK) and THINK.startswith(text):
            return False
        thinks = self._form.reasoning and text.startswith(THINK)
        if thinks:
            self._held, self._strip = text[len(THINK) :], True
        self._state = self._thinking if thinks else self._speaking
        return True

    def _thinking(self, parts: list[AnswerPart]) -> bool:
        text, found = self._until(THOUGHT)
        if text:
            parts.append(AnswerPart(reasoning=text))
        if found:
            self._state, self._strip = self._speaking, True
        return found

    def _speaking(self, parts: list[AnswerPart]) -> bool:
        if self._form.tools:
            text, found = self._until(CALL)
        else:
            text, found = self._strip_start(self._held), False
            self._held = ""
        if text:
            parts.append(self._content(text))
        if found:
            self._held, self._state, self._searched = CALL + self._held, self._calling, len(CALL)
            self._strings = JsonStrings(len(CALL))
        return found

    def _calling(self, parts: list[AnswerPart]) -> bool:
        end = self._end_of_call()
        if end < 0:
            return False
        self._take_call(end, parts)
        return True

    def _end_of_call(self) -> int:
        """Where the tag that ends a call stands in `_held`; below 0: not yet. Inside of a JSON string it ends none."""
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

    def _until(self, tag: str) -> tuple[str, bool]:
        """Takes the text before `tag`, or what cannot belong to it; and whether the tag was there."""
        text = self._strip_start(self._held)
        at = text.find(tag)
        if at >= 0:
            shown, self._held = text[:at].rstrip(), text[at + len(tag) :]
            self._gap = text[len(shown) : at]
            return shown, True
        # NOTE: white space before a tag belongs to it, and is shown once something else follows.
        kept = len(text[: len(text) - beginning_of(tag, text)].rstrip())
        self._held = text[kept:]
        return text[:kept], False

    def _strip_start(self, text: str) -> str:
        if self._strip:
            text = text.lstrip()
            self._strip = not text
        return text


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
    parser = form.parser(thinking=thinking)
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
