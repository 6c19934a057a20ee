"""From a Constraint to the text of a grammar that llguidance reads."""

import json

from llguidance import LLMatcher, grammar_from
from llguidance.gbnf_to_lark import any_to_lark

from jaxinfer.constraint import Constraint
from jaxinfer.errors import ParameterError

_WHITESPACE = r"( |\n[ \t]{0,32})"
"""Between JSON tokens: any number of them would let a model go on for ever without saying anything."""


def _ascii_digits(regex: str) -> str:
    """With `0-9` for `\\d`, as JSON Schema reads it: llguidance has the digits of all scripts."""
    pieces, in_class, at = [], False, 0
    while at < len(regex):
        piece = regex[at : at + 2] if regex[at] == "\\" else regex[at]
        at += len(piece)
        in_class = piece == "[" or (in_class and piece != "]")
        pieces.append(piece if piece != "\\d" else "0-9" if in_class else "[0-9]")
    return "".join(pieces)


def grammar_text(constraint: Constraint) -> str:
    """Raises ParameterError where it is no grammar; what llguidance refuses, it refuses later."""
    try:
        return _grammar_text(constraint)
    except ParameterError:
        raise
    except ValueError as error:  # a lone surrogate, too
        raise ParameterError(constraint.param, f"is no {constraint.kind}: {error}") from None


def unforced(grammar: str) -> str:
    """The same where what must follow may be written in any tokens: llguidance allows only the tokenizer's own there,
    which a request's rules may forbid. What is several grammars stays as it is."""
    if grammar.startswith("{"):
        parts = json.loads(grammar)["grammars"]
        if len(parts) > 1:
            return grammar
        schema = parts[0]["json_schema"]
        grammar = parts[0]["lark_grammar"] if schema is None else f"start: %json {json.dumps(schema)}"
    return f'%llguidance {{"no_forcing": true}}\n{grammar}'


def _grammar_text(constraint: Constraint) -> str:
    kind, value = constraint.kind, constraint.value
    if kind in ("json_schema", "json_object"):
        schema = value if kind == "json_schema" else '{"type": "object"}'
        between = constraint.whitespace or _WHITESPACE
        return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": between})
    if kind == "regex":
        return LLMatcher.grammar_from_regex(_ascii_digits(value))
    if kind == "choice":
        return grammar_from("choice", json.dumps(json.loads(value)))
    try:
        return LLMatcher.grammar_from_lark(any_to_lark(value))
    except Exception as error:  # of a converter that documents none
        raise ParameterError(constraint.param, f"is no grammar in GBNF: {error}") from None
