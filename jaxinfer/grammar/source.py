"""From a Constraint to the text of a grammar that llguidance reads."""

import json
import re

from llguidance import LLMatcher, grammar_from
from llguidance.gbnf_to_lark import gbnf_to_lark

from jaxinfer.constraint import Constraint
from jaxinfer.errors import ParameterError
from jaxinfer.grammar.schema.rewriting import UnfitError, rewritten
from jaxinfer.grammar.tags import SpecialIds, TagsWriter
from jaxinfer.structural_tag import Node, leaves

_WHITESPACE = r"( |\n[ \t]{0,32})"
"""Between JSON tokens: any number of them would let a model go on for ever without saying anything."""

_FIXED_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def _ascii_digits(regex: str) -> str:
    """Replace `\\d` by `0-9`, as JSON Schema reads it: llguidance matches the digits of all scripts."""
    pieces, in_class, at = [], False, 0
    while at < len(regex):
        piece = regex[at : at + 2] if regex[at] == "\\" else regex[at]
        at += len(piece)
        in_class = piece == "[" or (in_class and piece != "]")
        pieces.append(piece if piece != "\\d" else "0-9" if in_class else "[0-9]")
    return "".join(pieces)


def grammar_text(constraint: Constraint, special_ids: SpecialIds, *, forces: bool = True) -> str:
    """special_ids: of the tokenizer. forces: False: of `unforced`; so is what has the letters of an added token: the
    tokenizer would spell those as that token, which is no text. Raises ParameterError where it is no grammar; what
    llguidance refuses, it refuses later."""
    try:
        if constraint.kind == "structural_tag":
            text, has_letters = _tags_text(json.loads(constraint.value), special_ids)
        else:
            text = _grammar_text(constraint)
            has_letters = _has_special(text, special_ids)
        return text if forces and not has_letters else unforced(text)
    except ParameterError:
        raise
    except ValueError as error:  # a lone surrogate, too
        raise ParameterError(constraint.param, f"is no {constraint.kind}: {error}") from None


def writes_json(constraint: Constraint) -> bool:
    """Return whether all that a constraint's text has, beside free text and constants, is JSON."""
    if constraint.kind != "structural_tag":
        return constraint.kind in ("json_schema", "json_object")
    return all(leaf["type"] == "json_schema" for leaf in leaves(json.loads(constraint.value)))


def excluded_from_grammars(constraint: Constraint) -> tuple[str, ...]:
    """Return the strings that texts of grammars inside a structural tag must not contain."""
    if constraint.kind != "structural_tag":
        return ()
    found = [leaf.get("excludes", ()) for leaf in leaves(json.loads(constraint.value)) if leaf["type"] == "grammar"]
    return tuple(dict.fromkeys(each for strings in found for each in strings))


def parts_of(constraint: Constraint) -> list[Constraint]:
    """Return the constraints inside a structural tag, each with the field that it came from: the tag is refused if one
    of them is."""
    if constraint.kind != "structural_tag":
        return []
    return [_part(leaf) for leaf in leaves(json.loads(constraint.value))]


def _part(leaf: Node) -> Constraint:
    param = leaf["param"]
    if leaf["type"] == "json_schema":
        return Constraint("json_schema", json.dumps(leaf["json_schema"]), param=param)
    if leaf["type"] == "regex":
        return Constraint("regex", leaf["pattern"], param=param)
    return Constraint("grammar", leaf["grammar"], param=param)


def unforced(grammar: str) -> str:
    """Return the grammar with forced text in any tokens: llguidance allows only the tokenizer's own there, which a
    request's rules may forbid."""
    if not grammar.startswith("{"):
        return _NO_FORCING + grammar
    first, *others = json.loads(grammar)["grammars"]
    schema = first.get("json_schema")
    lark = _NO_FORCING + (first["lark_grammar"] if schema is None else f"start: %json {json.dumps(schema)}")
    return json.dumps({"grammars": [{**first, "json_schema": None, "lark_grammar": lark}, *others]})


_NO_FORCING = '%llguidance {"no_forcing": true}\n'


def _has_special(text: str, special_ids: SpecialIds) -> bool:
    """Return whether a text, which may be escaped, has the letters of an added token. Texts that consist of pieces,
    such as `<th[i]nk>`, are not found."""
    plain = text.replace("\\", "")
    return any(token in plain or json.dumps(token)[1:-1].replace("\\", "") in plain for token in special_ids)


def _tags_text(node: Node, special_ids: SpecialIds) -> tuple[str, bool]:
    """A grammar, and whether it has letters of an added token where that token itself may not stand for them."""
    writer = TagsWriter(special_ids, _inner_schema, _inner_regex, _lark)
    text = writer.write(node)
    has_letters = writer.has_letters or any(_has_special(json.dumps(leaf), special_ids) for leaf in leaves(node))
    return text, has_letters


def _grammar_text(constraint: Constraint) -> str:
    kind, value = constraint.kind, constraint.value
    if kind in ("json_schema", "json_object"):
        schema = value if kind == "json_schema" else '{"type": "object"}'
        return _schema_grammar(schema, constraint.whitespace, constraint.param)
    if kind == "regex":
        return LLMatcher.grammar_from_regex(_ascii_digits(value))
    if kind == "choice":
        return grammar_from("choice", value)
    return LLMatcher.grammar_from_lark(_lark(value, constraint.param))


def _schema_grammar(schema: str, whitespace: str | None, param: str) -> str:
    try:
        text, escapes = rewritten(schema)
    except UnfitError as error:
        raise ParameterError(param, f"this json_schema is refused: {error}") from None
    spacing = _FIXED_SPACING if whitespace == "" else {"whitespace_pattern": whitespace or _WHITESPACE}
    options = {"json_allowed_escapes": escapes, **spacing}
    return LLMatcher.grammar_from_json_schema(text, overrides=options)  # pyright: ignore[reportArgumentType]


def _inner_schema(schema: object, whitespace: str | None, param: str) -> str:
    """Return a schema with the whitespace between JSON tokens in it."""
    return json.dumps(json.loads(_schema_grammar(json.dumps(schema), whitespace, param))["grammars"][0]["json_schema"])


def _inner_regex(pattern: str) -> str:
    """Between slashes, as llguidance writes it."""
    start = json.loads(LLMatcher.grammar_from_regex(_ascii_digits(pattern)))["grammars"][0]["lark_grammar"]
    return start.removeprefix("start: ")


_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_LARK_PIECE = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/(?:\\.|[^/\\\n])+/|%json\s*(?=\{)')
"""Text that may hold braces that are no schema, and the beginning of one that is."""


def _lark(grammar: str, param: str) -> str:
    if not _GBNF_RULE.search(grammar):
        return _with_schemas_rewritten(grammar, param)
    try:
        return gbnf_to_lark(grammar)
    except MemoryError:
        raise
    except Exception as error:  # of a converter that documents none
        raise ParameterError(param, f"is no grammar in GBNF: {error}") from None


def _with_schemas_rewritten(grammar: str, param: str) -> str:
    """Rewrite the schemas of `%json` as others are: otherwise llguidance would loosen them, too."""
    pieces, at = list[str](), 0
    while found := _LARK_PIECE.search(grammar, at):
        pieces.append(grammar[at : found.end()])
        at = found.end()
        if found[0].startswith("%json"):
            try:
                schema, at = json.JSONDecoder().raw_decode(grammar, at)
            except ValueError:  # llguidance says where it is wrong
                continue
            pieces.append(_inner_schema(schema, None, param))
    return "".join([*pieces, grammar[at:]])
