"""AnswerParser: what a model says in a chat, taken apart into reasoning, content and tool calls."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from jaxinfer.sampling import SamplingParams
from jaxinfer.text.answer.calls.argument_types import ArgumentTypes, ToolSchema, argument_types
from jaxinfer.text.answer.calls.form import CallForm
from jaxinfer.text.answer.calls.json_calls import HERMES
from jaxinfer.text.answer.calls.registry import form_of_template
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
    is_text,
    member_text,
)
from jaxinfer.text.answer.thoughts import THINK, Thoughts, thoughts_of_template
from jaxinfer.text.tokenizer.tokenizer import Tokenizer

CALL, CALLED = HERMES.begins[0], HERMES.end

_MOST_TRIES = 64
"""Ends of calls that may turn out to be none, and beginnings: each is a search of all that is held."""

_State = Callable[[list[AnswerPart]], bool]


NO_TYPES: ArgumentTypes = MappingProxyType({})


class AnswerFormat(NamedTuple):
    """Format in which a model's text is parsed.

    thoughts: tags of reasoning before the answer; None: it is not parsed. calls: the form of tool calls; None: they are
    not parsed. channels: both are messages in channels instead (the harmony format, gpt-oss); each is parsed if its
    field is not None. types: of arguments, for forms that do not quote strings.
    """

    thoughts: Thoughts | None = None
    calls: CallForm | None = None
    channels: bool = False
    types: ArgumentTypes = NO_TYPES

    @classmethod
    def of_template(cls, template: str) -> "AnswerFormat":
        """Infer the model's format from its chat template; other forms of tool calls are not mistaken for this one."""
        if FINAL in template:
            return cls(THINK, HERMES if FUNCTIONS in template else None, channels=True)
        return cls(thoughts_of_template(template), form_of_template(template))

    @property
    def constrained_calls(self) -> CallForm | None:
        """The form of calls; None if they are not parsed, or cannot be constrained yet."""
        return None if self.channels else self.calls

    def offering(self, tools: Sequence[ToolSchema]) -> "AnswerFormat":
        """The format of answers to a request that offers these tools: without calls where there are none."""
        calls = self.calls if tools else None
        types = argument_types(tools) if calls is not None and calls.needs_schema else NO_TYPES
        return self._replace(calls=calls, types=types)

    def parser(self, *, thinking: bool = False) -> Parser:
        """A parser for one answer. thinking: the prompt itself has opened a thought."""
        if self.channels:
            return HarmonyParser(reasoning=self.thoughts is not None, tools=self.calls is not None)
        return AnswerParser(self, thinking=thinking)

    def thinks(self, prompt: str, *, continued: bool = False) -> bool:
        """Return whether the answer to a prompt begins inside of a thought, as `Thoughts.opened_by` has it."""
        return self.thoughts is not None and self.thoughts.opened_by(prompt, continued=continued)

    def params(self, params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
        """Parameters with which the text has the tags, also if they are special tokens."""
        return dataclasses.replace(params, skip_special_tokens=False) if self._needs_special(tokenizer) else params

    def _needs_special(self, tokenizer: Tokenizer) -> bool:
        marks = "\n".join([*(self.thoughts or ()), *(() if self.calls is None else self.calls.marks)])
        special = (token for token, number in tokenizer.added_ids.items() if number in tokenizer.special_ids)
        return self.channels or any(token in marks for token in special)


class AnswerParser:
    """Takes text apart as it arrives; the result does not depend on how it is cut into pieces.

    Text is held back while it may begin a tag. Line breaks around tags belong to the tags. A call whose arguments are
    no JSON object within their first `TOLD_AFTER` characters stays in the content as it was written; of others the
    arguments come as they are written. A thought may follow another at once; a tag that ends none is dropped where it
    begins the answer or a line. thinking: the prompt itself has opened a thought.
    """

    def __init__(self, form: AnswerFormat, *, thinking: bool = False):
        self._form = form
        self._held = ""
        self._gap = ""  # white space before a call, which stays where it turns out to be none
        self._tags = form.thoughts or THINK
        self._state = self._opening if form.thoughts and thinking else self._beginning
        self._strip = False
        self._searched = 0  # where the end of a call is looked for
        self._strings = JsonStrings(0)  # of that call
        self._may_tell = True  # whether the arguments of that call may turn out to be an object
        self._arguments = ObjectText()  # of a call that is told
        self._begun = ""  # what began the calls of another form
        self._tries = self._given_up = 0  # ends of them that were none; beginnings that were none
        self._said = False  # something of the content was told
        self._parted = False  # a call stood between that and what follows
        self._thought = form.thoughts is not None and thinking  # a thought has begun or ended
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
        while self._state == self._reading:
            if not self._take_calls(len(self._held), parts):
                self._give_up(parts)
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
        if self._form.thoughts is None:
            self._state = self._speaking
            return True
        return self._take_tag({self._tags.begin: self._opening, self._tags.end: self._after_thought}, self._speaking)

    def _opening(self, parts: list[AnswerPart]) -> bool:
        """Begin a thought, of which nothing has come: the tag may be there once more."""
        self._thought, self._strip, self._new_thought = True, True, True
        return self._take_tag({self._tags.begin: self._opening}, self._thinking)

    def _thinking(self, parts: list[AnswerPart]) -> bool:
        text, found = self._until(_marks((self._tags.end,)), self._tags.end)
        if text:
            parts.append(self._reasoning(text))
        if found:
            self._state, self._parted = self._after_thought, self._said
        return bool(found)

    def _after_thought(self, parts: list[AnswerPart]) -> bool:
        self._thought, self._strip = True, True
        return self._take_tag({self._tags.begin: self._opening, self._tags.end: self._after_thought}, self._speaking)

    def _speaking(self, parts: list[AnswerPart]) -> bool:
        begins = () if self._form.calls is None or self._given_up > _MOST_TRIES else self._form.calls.begins
        stray = self._tags.end if self._form.thoughts and not self._thought else ""
        if tags := (*begins, *filter(None, [stray])):
            text, found = self._until(_marks(begins, stray), *tags)
        else:
            text, found = self._strip_start(self._held), ""
            self._held = ""
        if text:
            parts.append(self._content(text))
        if found in begins:
            self._begin_calls(found)
        elif found:
            self._state, self._parted = self._after_thought, True
        return bool(found)

    def _begin_calls(self, begin: str) -> None:
        self._held, self._searched, self._begun, self._tries = begin + self._held, len(begin), begin, 0
        self._state = self._calling if self._form.calls is HERMES else self._reading
        self._strings, self._may_tell = JsonStrings(len(CALL)), True

    def _reading(self, parts: list[AnswerPart]) -> bool:
        """Read calls of a form whose calls are told once they are whole."""
        end = self._form.calls.end if self._form.calls is not None else ""
        while end and (at := self._held.find(end, self._searched)) >= 0:
            self._searched, self._tries = at + len(end), self._tries + 1
            if self._take_calls(self._searched, parts):
                return True
            if self._tries > _MOST_TRIES:  # otherwise the mark may stand inside of an argument
                return self._give_up(parts)
        self._searched = max(self._searched, len(self._held) - len(end) + 1)
        return False

    def _give_up(self, parts: list[AnswerPart]) -> bool:
        """Takes what seemed to begin calls for text, behind which others may begin."""
        parts.append(self._content(self._gap + self._begun))
        self._held, self._state, self._strip = self._held[len(self._begun) :], self._speaking, False
        self._given_up += 1
        return True

    def _take_calls(self, end: int, parts: list[AnswerPart]) -> bool:
        """Takes the calls that `_held` has up to `end`, if these are whole."""
        assert self._form.calls is not None
        calls = self._form.calls.parse(self._held[:end], self._form.types)
        if calls is None:
            return False
        parts += [AnswerPart(tool_call=call) for call in calls]
        self._held, self._state, self._strip, self._parted = self._held[end:], self._speaking, True, True
        return True

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
        name = DECODER.decode(head[1])
        self._may_tell = is_text(name)
        if not self._may_tell:
            return False
        parts.append(AnswerPart(tool_call=ToolCallPart(name, "")))
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
        """Look for the end of a call that was told, behind its arguments."""
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


@cache
def _marks(marks: tuple[str, ...], stray: str = "") -> re.Pattern[str]:
    """A pattern of any of the marks. stray: another, which counts only where a line begins."""
    found = [re.escape(mark) for mark in marks]
    return re.compile("|".join([*found, rf"(?<=\n){re.escape(stray)}"] if stray else found))


_HEAD = re.compile(
    re.escape(CALL) + r"""\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)"""
)
"""A call up to its arguments."""


class ParsedAnswer(NamedTuple):
    """A whole answer, taken apart. content and reasoning are empty where there are none."""

    content: str
    reasoning: str
    tool_calls: list[ToolCallPart]


def parse_answer(text: str, form: AnswerFormat, *, thinking: bool = False) -> ParsedAnswer:
    """The parts of a text that is whole. thinking: the prompt itself has opened a thought."""
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
    if not isinstance(said, dict) or not is_text(said.get("name")):
        return None
    key = "arguments" if "arguments" in said else "parameters"
    # As it is written: a number may be more exact than one of Python's.
    arguments = member_text(text, key) if isinstance(said.get(key), dict) else arguments_text(said.get(key, {}))
    return None if arguments is None else AnswerPart(tool_call=ToolCallPart(said["name"], arguments))


def _ends_call(tail: str) -> bool:
    """Return True if a text behind a call's arguments ends its object."""
    return json_object('{"":{}' + tail) is not None
