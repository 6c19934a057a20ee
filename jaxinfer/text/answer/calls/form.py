"""CallForm: how the models of some families write calls."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from jaxinfer.structural_tag import Node
from jaxinfer.text.answer.calls.argument_types import ArgumentTypes
from jaxinfer.text.answer.parts import ToolCallPart


class Callable(NamedTuple):
    """A function that an answer may call. schema: of its arguments, an object. param: what errors call the schema."""

    name: str
    schema: dict[str, Any]
    param: str

    def arguments(self, whitespace: str | None) -> Node:
        """Its arguments as a JSON object. whitespace: in it, as `Constraint` has it."""
        return {"type": "json_schema", "json_schema": self.schema, "whitespace": whitespace, "param": self.param}


@dataclass(frozen=True, kw_only=True)
class CallForm(ABC):
    """One form of calls.

    title: families that have it. names: those of `--tool-call-parser`. shown: what a chat template that writes so has.
    begins: strings that begin calls; another text seldom has them. end: ends calls; empty: they go on to the answer's
    end. wraps: all calls of an answer stand between the two; otherwise each does. between: separates calls.
    """

    title: str
    names: tuple[str, ...]
    shown: tuple[str, ...]
    begins: tuple[str, ...]
    end: str = ""
    wraps: bool = False
    between: str = "\n"
    needs_schema: ClassVar[bool] = False
    """True where the text of arguments follows from their schema."""
    brackets: ClassVar[tuple[str, str]] = ("", "")
    """What stands around all calls of an answer, inside of the marks."""

    def shows(self, template: str) -> bool:
        """Return True if a chat template writes calls so."""
        return all(mark in template for mark in self.shown)

    @abstractmethod
    def parse(self, text: str, types: ArgumentTypes) -> list[ToolCallPart] | None:
        """The calls that a text is, which begins as `begins` has it, up to `end` or to the answer's end; None if it is
        none, or not all of one."""

    def tags(self, functions: Sequence[Callable], *, one: bool) -> list[Node]:
        """Return tags of a structural tag, each from the first of `begins`, of calls of these functions. one: an answer
        has one call at most."""
        begin, (opening, closing) = self.begins[0], self.brackets
        if not self.wraps:
            return [self.tag(each, begin, self.end) for each in functions]
        calls = one_or_more([self.tag(each) for each in functions], self.between, one=one)
        return [{"type": "tag", "begin": begin + opening, "content": calls, "end": closing + self.end}]

    @abstractmethod
    def tag(self, function: Callable, before: str = "", after: str = "") -> Node:
        """Return the tag of one call of a function. before, after: what its beginning and its end have, too."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Strings of calls that a tokenizer may have as special tokens, which the text must show."""
        return (*self.begins, self.end)

    def inner(self, text: str) -> str:
        """Return the text between the marks of a text of calls."""
        begin = next((each for each in self.begins if text.startswith(each)), "")
        return text[len(begin) :].removesuffix(self.end)


def const(text: str) -> Node:
    """A text as part of a structural tag."""
    return {"type": "const_string", "value": text}


def one_or_more(tags: list[Node], between: str, *, one: bool) -> Node:
    """At least one of these tags, or just one."""
    return _separated(tags, between, at_least_one=True, stop_after_first=one)


def optional(tag: Node) -> Node:
    """A tag that may be missing."""
    return _separated([tag], "", at_least_one=False, stop_after_first=True)


def _separated(tags: list[Node], between: str, *, at_least_one: bool, stop_after_first: bool) -> Node:
    return {"type": "tags_with_separator", "tags": tags, "separator": between, "at_least_one": at_least_one,
            "stop_after_first": stop_after_first}  # fmt: skip
