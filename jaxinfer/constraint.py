"""Constraint: what a request's text must be, in one form for every way to ask for it. Imports no grammar library."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from jaxinfer.errors import ParameterError
from jaxinfer.structural_tag import Node, read_structural_tag

ConstraintKind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]
KINDS: tuple[ConstraintKind, ...] = ("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag")
_PARAM = "structured_outputs"
_OUTPUTS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
_SPACING = ("whitespace_pattern", "disable_any_whitespace")
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
        """Build a constraint from a JSON Schema: an object, a boolean, or either as text. param: names it in errors."""
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
        """Build a constraint from a list of strings, of which the text must be one."""
        if not isinstance(texts, Sequence) or isinstance(texts, str) or not 1 <= len(texts) <= MAX_CHOICES:
            raise ParameterError(param, f"must be a list of 1 to {MAX_CHOICES:,} strings")
        if not all(isinstance(text, str) and text for text in texts):
            raise ParameterError(param, "each must be a string that is not empty")
        return cls("choice", _bounded(json.dumps(list(texts)), param), param=param)

    @classmethod
    def text(cls, kind: Literal["regex", "grammar"], text: object, param: str = _PARAM) -> "Constraint":
        """Build a constraint from a regular expression or a grammar."""
        if kind not in ("regex", "grammar"):
            raise ParameterError(param, f"{kind!r} must be regex or grammar; others have a function each")
        if not isinstance(text, str) or not text:
            raise ParameterError(param, "must be a string that is not empty")
        return cls(kind, _bounded(text, param), param=param)

    @classmethod
    def structural_tag(cls, value: object, param: str = _PARAM) -> "Constraint":
        """Build a constraint from a structural tag, which is free text and tagged parts, in XGrammar's form or vLLM's
        older one: an object, or its JSON."""
        if isinstance(value, str):
            value = _read_json(value, param)
        if _deeper(value, MAX_DEPTH):
            raise ParameterError(param, f"is nested deeper than {MAX_DEPTH}")
        return cls.tags(read_structural_tag(value, param), param)

    @classmethod
    def tags(cls, node: Node, param: str = _PARAM) -> "Constraint":
        """Build a constraint from a structural tag that has been read."""
        return cls("structural_tag", _bounded(json.dumps(node), param), param=param)

    @classmethod
    def outputs(cls, value: object, param: str = _PARAM) -> "Constraint":
        """Read vLLM's `structured_outputs`: an object with one of `json`, `json_object`, `regex`, `choice`, `grammar`
        and `structural_tag`, and, for JSON, `whitespace_pattern` or `disable_any_whitespace`."""
        given = {
            key: each for key, each in check_object(value, param).items() if each is not None and each is not False
        }
        if unknown := [key for key in given if key not in (*_OUTPUTS, *_SPACING)]:
            allowed = ", ".join((*_OUTPUTS, *_SPACING))
            raise ParameterError(f"{param}.{unknown[0]}", f"is not supported; {allowed} are")
        pattern, fixed = (given.pop(key, None) for key in _SPACING)
        found = [each for key, inner in given.items() for each in cls.of_key(key, inner, f"{param}.{key}")]
        if len(found) != 1:
            raise ParameterError(param, f"has {len(found)} of {', '.join(_OUTPUTS)}; give one")
        if fixed is not None:
            return found[0]._with_fixed_spacing(fixed, pattern, f"{param}.disable_any_whitespace")
        return found[0] if pattern is None else found[0].with_spacing(pattern, f"{param}.whitespace_pattern")

    @classmethod
    def of_key(cls, key: str, value: object, param: str) -> list["Constraint"]:
        """Read one key of `structured_outputs`; empty if its value asks for nothing."""
        if value is None or (key == "json_object" and value is False):
            return []
        if key == "json":
            return [cls.schema(value, param)]
        if key == "json_object":
            if value is not True:
                raise ParameterError(param, "must be true or false")
            return [cls("json_object", param=param)]
        if key == "choice":
            return [cls.choice(value, param)]
        if key == "structural_tag":
            return [cls.structural_tag(value, param)]
        return [cls.text("regex" if key == "regex" else "grammar", value, param)]

    def with_spacing(self, pattern: object, param: str) -> "Constraint":
        """Return it with the white space that a client allows between JSON tokens. Raises ParameterError."""
        self._check_json(param)
        if not isinstance(pattern, str) or not pattern:
            raise ParameterError(param, "must be a string that is not empty")
        return self.with_whitespace(pattern)

    def _with_fixed_spacing(self, fixed: object, pattern: object, param: str) -> "Constraint":
        self._check_json(param)
        if fixed is not True:
            raise ParameterError(param, "must be true or false")
        if pattern is not None:
            raise ParameterError(param, "contradicts whitespace_pattern; give one of them")
        return self.with_whitespace("")

    def _check_json(self, param: str) -> None:
        if self.kind not in ("json_schema", "json_object"):
            raise ParameterError(param, f"goes with JSON, not with {self.kind}")

    def with_whitespace(self, pattern: str) -> "Constraint":
        """Return a copy with another regular expression of the whitespace between JSON tokens."""
        return replace(self, whitespace=pattern)

    def after_thought(self, end: str, begin: int | None) -> "Constraint":
        """Return a copy that constrains only the text after a thought. end: text that ends the thought. begin: the id
        that may begin one; None: the prompt has begun it."""
        return replace(self, after=end, thought=begin)


def check_object(value: object, param: str) -> Mapping[str, Any]:
    """Return what is an object. Raises ParameterError."""
    if not isinstance(value, Mapping):
        raise ParameterError(param, f"must be an object, not {type(value).__name__}")
    return value


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
    """Return whether a JSON value is nested deeper than `most`. Not recursive: deep nesting must not overflow the
    stack."""
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
