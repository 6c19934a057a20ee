"""Constraint: what a request's text must be, in one form for every way to ask for it. Imports no grammar library."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from jaxinfer.errors import ParameterError
from jaxinfer.structural_tag import Node, read_structural_tag

ConstraintKind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]
KINDS: tuple[ConstraintKind, ...] = ("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag")
_PARAM = "structured_outputs"
MAX_CHARS = 1 << 18
MAX_DEPTH = 64
MAX_CHOICES = 1000


@dataclass(frozen=True)
class Constraint:
    """One of KINDS.

    value: a JSON Schema, a list of strings or a node of `structural_tag.py` as JSON, a regular expression, or a grammar
    in Lark or GBNF; empty for any JSON object. whitespace: a regular expression of what may stand between JSON tokens;
    None: a space, or a line break and its indentation; empty: a space after a comma and a colon, always, and nothing
    else, so that more tokens are forced. after: what ends a thought; empty: the text is constrained from its first
    token on. thought: the id that begins a thought where it is the first token, and that may be so; None: the thought,
    if there is one, has begun. param: the field that asked for it, for errors.
    """

    kind: ConstraintKind
    value: str = ""
    whitespace: str | None = None
    after: str = ""
    thought: int | None = None
    param: str = field(default=_PARAM, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ParameterError(self.param, f"{self.kind!r} must be one of {', '.join(KINDS)}")
        for name, text in ((self.param, self.value), ("whitespace_pattern", self.whitespace or "")):
            if not isinstance(text, str) or len(text) > MAX_CHARS:
                raise ParameterError(name, f"must be a string of at most {MAX_CHARS:,} characters")

    @classmethod
    def schema(cls, schema: object, param: str = _PARAM) -> "Constraint":
        """Of a JSON Schema: an object, a boolean, or either as text. param: names it in errors."""
        if isinstance(schema, str):
            schema = _read_json(schema, param)
        if not isinstance(schema, dict | bool):
            raise ParameterError(param, f"must be a JSON Schema: an object or a boolean, not {type(schema).__name__}")
        if schema is False:
            raise ParameterError(param, "is false, which no text is")
        schema = {} if schema is True else schema
        if _deeper(schema, MAX_DEPTH):
            raise ParameterError(param, f"is nested deeper than {MAX_DEPTH}")
        return cls("json_schema", _bounded(json.dumps(schema), param), param=param)

    @classmethod
    def choice(cls, texts: object, param: str = _PARAM) -> "Constraint":
        """Of a list of strings, of which the text must be one."""
        if not isinstance(texts, Sequence) or isinstance(texts, str) or not 1 <= len(texts) <= MAX_CHOICES:
            raise ParameterError(param, f"must be a list of 1 to {MAX_CHOICES:,} strings")
        if not all(isinstance(text, str) and text for text in texts):
            raise ParameterError(param, "each must be a string that is not empty")
        return cls("choice", _bounded(json.dumps(list(texts)), param), param=param)

    @classmethod
    def text(cls, kind: Literal["regex", "grammar"], text: object, param: str = _PARAM) -> "Constraint":
        """Of a regular expression or a grammar."""
        if kind not in ("regex", "grammar"):
            raise ParameterError(param, f"{kind!r} must be regex or grammar; others have a function each")
        if not isinstance(text, str) or not text:
            raise ParameterError(param, "must be a string that is not empty")
        return cls(kind, _bounded(text, param), param=param)

    @classmethod
    def structural_tag(cls, value: object, param: str = _PARAM) -> "Constraint":
        """Of free text and tagged parts, in XGrammar's form or vLLM's older one: an object, or its JSON."""
        if isinstance(value, str):
            value = _read_json(value, param)
        if _deeper(value, MAX_DEPTH):
            raise ParameterError(param, f"is nested deeper than {MAX_DEPTH}")
        return cls.tags(read_structural_tag(value, param), param)

    @classmethod
    def tags(cls, node: Node, param: str = _PARAM) -> "Constraint":
        """Of a structural tag that has been read."""
        return cls("structural_tag", _bounded(json.dumps(node), param), param=param)

    def with_whitespace(self, pattern: str) -> "Constraint":
        """With another regular expression of what may stand between JSON tokens."""
        return replace(self, whitespace=pattern)

    def after_thought(self, end: str, begin: int | None) -> "Constraint":
        """Of what follows a thought. begin: the id that may begin one; None: the prompt has."""
        return replace(self, after=end, thought=begin)


def _read_json(text: str, param: str) -> object:
    try:
        return json.loads(_bounded(text, param))
    except (ValueError, RecursionError) as error:
        raise ParameterError(param, f"is not JSON: {error}") from None


def _bounded(text: str, param: str) -> str:
    if len(text) > MAX_CHARS:
        raise ParameterError(param, f"has {len(text):,} characters; at most {MAX_CHARS:,} are allowed")
    return text


def _deeper(value: object, most: int) -> bool:
    """Whether a JSON value is nested deeper than `most`. Not recursive: what is nested too deep must not overflow."""
    level = [value]
    for _ in range(most):
        level = [inner for each in level for inner in _inner(each)]
        if not level:
            return False
    return True


def _inner(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list) else []
