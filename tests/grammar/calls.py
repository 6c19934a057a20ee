"""Texts with tool calls that a model without any sense might write, under the grammars that requests get."""

import json
import random
from collections.abc import Sequence
from typing import Any

import jsonschema

from jaxinfer.constraint import Constraint
from jaxinfer.grammar.grammars import Grammars
from jaxinfer.grammar.matcher import GrammarMatcher
from jaxinfer.serving.bodies.chat_schema import ChatBody, Function, Message, Tool
from jaxinfer.serving.requests.tool_choice import calls_constraint
from jaxinfer.text.answer.calls.json_calls import HERMES
from jaxinfer.text.answer.parser import AnswerFormat, AnswerParser, ParsedAnswer, parse_answer
from jaxinfer.text.answer.parts import AnswerPart, WholeCalls
from tests.grammar.walks import END, SIZE, TOKENIZER, compiled, legal

FORM = AnswerFormat(calls=HERMES)
CALL, CALLED = 5, 6
"""Ids of the tags, in the demo's vocabulary."""


def constraint_of(
    functions: Sequence[dict[str, Any]], content: Constraint | None = None, form: AnswerFormat = FORM, **fields: Any
) -> Constraint | None:
    """What an answer must be to a chat with these tools. fields: of its body."""
    tools = [Tool(type="function", function=Function(**each)) for each in functions]
    body = ChatBody(messages=[Message(role="user", content="hi")], tools=tools, **fields)
    return calls_constraint(body, form, content)


def ids_of(*texts: str) -> list[int]:
    """Of these tokens, where the vocabulary has them."""
    return [found for text in texts if (found := TOKENIZER.token_to_id(text)) is not None]


class Writer:
    """Draws tokens: often those that open or end calls and JSON, so that texts end and have calls. phrases: written in
    letters, often, where they may be."""

    def __init__(self, grammars: Grammars, draw: random.Random, most: int = 600, phrases: Sequence[str] = ()):
        self._grammars, self._draw, self._most, self._phrases = grammars, draw, most, phrases
        self._liked = {CALL, CALLED, *ids_of('"', "}", "]", '"}', "}}", "<", "true", "1", ":", ",")}

    def write(self, constraint: Constraint) -> str | None:
        """A whole text; None where it did not end."""
        matcher, ids = compiled(self._grammars, constraint), list[int]()
        while not matcher.ended:
            tokens = self._phrase(matcher) or [self._next(legal(self._grammars, matcher, SIZE))]
            if tokens == [END]:
                break
            if len(ids) >= self._most:
                return None
            matcher.accept(tokens)
            ids += tokens
        return TOKENIZER.decode(ids, skip_special_tokens=True)

    def _phrase(self, matcher: GrammarMatcher) -> list[int]:
        """One that may be written here; empty where none may, or it is not the time."""
        tokens = spelled(self._draw.choice(self._phrases)) if self._phrases and self._draw.random() < 0.3 else []
        return tokens if matcher.grammar.validate_tokens(tokens) == len(tokens) else []

    def _next(self, allowed: list[int]) -> int:
        liked = [token for token in allowed if token in self._liked]
        if END in allowed and self._draw.random() < 0.3:
            return END
        if CALL in allowed and self._draw.random() < 0.5:
            return CALL
        others = [token for token in allowed if token != END]
        return self._draw.choice(liked if liked and self._draw.random() < 0.6 else others or allowed)


def in_pieces(text: str, draw: random.Random, form: AnswerFormat = FORM) -> ParsedAnswer:
    """Taken apart as a stream is."""
    parser, parts, at = WholeCalls(AnswerParser(form)), list[AnswerPart](), 0
    while at < len(text):
        cut = at + draw.randint(1, 12)
        parts += parser.push(text[at:cut])
        at = cut
    parts += parser.flush()
    calls = [part.tool_call for part in parts if part.tool_call is not None]
    return ParsedAnswer("".join(part.content for part in parts), "".join(part.reasoning for part in parts), calls)


def taken_apart(text: str, draw: random.Random, form: AnswerFormat = FORM) -> ParsedAnswer:
    """Asserts that a stream's pieces give the same."""
    whole = parse_answer(text, form)
    assert in_pieces(text, draw, form) == whole
    return whole


def check_calls(answer: ParsedAnswer, functions: Sequence[dict[str, Any]], *, strict_only: bool = False) -> None:
    """Each call is one of these functions, with arguments by its schema: all, or of strict ones alone."""
    known = {each["name"]: each for each in functions}
    for call in answer.tool_calls:
        arguments, function = json.loads(call.arguments), known[call.name]
        assert isinstance(arguments, dict)
        if function.get("strict") or not strict_only:
            jsonschema.validate(arguments, function.get("parameters") or {"additionalProperties": False})


def accepted(grammars: Grammars, constraint: Constraint, *pieces: str | int) -> bool:
    """Whether this may be written: ids, and texts, each letter as a token of its own."""
    matcher = compiled(grammars, constraint).grammar
    ids = [each for piece in pieces for each in ([piece] if isinstance(piece, int) else spelled(piece))]
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def spelled(text: str) -> list[int]:
    """A text of ASCII letters, each as a token of its own: never a tag's."""
    return [_LETTERS[letter] for letter in text]


_LETTERS = {TOKENIZER.decode([each]): each for each in range(SIZE) if len(TOKENIZER.decode([each])) == 1}
