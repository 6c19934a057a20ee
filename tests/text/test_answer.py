"""Answers taken apart: the same whatever the pieces, and never a character lost that is no tag."""

import json
from random import Random

import pytest

from jaxinfer.text.answer.calls.json_calls import HERMES
from jaxinfer.text.answer.parser import AnswerFormat, AnswerParser
from jaxinfer.text.answer.parts import TOLD_AFTER, AnswerPart, ToolCallPart, WholeCalls
from jaxinfer.text.answer.thoughts import THINK

BOTH = AnswerFormat(thoughts=THINK, calls=HERMES)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
LONG_ARGUMENTS = {
    "text": 'He said "<tool_call>", "</tool_call>" and \\ {[' * 5,
    "list": [{"a": [1.5, None, True]}, "}"],
}
LONG = f"<tool_call>\n{json.dumps({'name': 'write', 'arguments': LONG_ARGUMENTS})}\n</tool_call>"

CASES = {
    "plain": ("Hello, world.", "", "Hello, world.", []),
    "thinking": ("<think>\nLet me see.\n\nYes.\n</think>\n\nIt is 4.", "Let me see.\n\nYes.", "It is 4.", []),
    "empty thinking": ("<think>\n\n</think>\n\nHi", "", "Hi", []),
    "never ends thinking": ("<think>\nhm", "hm", "", []),
    "a tag of its own in the middle": ("I say <think> here", "", "I say <think> here", []),
    "call": (CALL, "", "", [("get_weather", {"city": "Zürich"})]),
    "text, then calls": (
        f"I look.\n{CALL}\n{CALL}", "", "I look.", [("get_weather", {"city": "Zürich"})] * 2,
    ),
    "text around a call": (f"a\n{CALL}\nb", "", "a\nb", [("get_weather", {"city": "Zürich"})]),
    "all three": (f"<think>a</think>b\n\n{CALL}", "a", "b", [("get_weather", {"city": "Zürich"})]),
    "parameters as Llama says it": (
        '<tool_call>{"name": "f", "parameters": {"x": 1}}</tool_call>', "", "", [("f", {"x": 1})],
    ),
    "arguments as text": (
        '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "", "", [("f", {"x": 1})],
    ),
    "no arguments": ('<tool_call>{"name": "f"}</tool_call>', "", "", [("f", {})]),
    "the end's tag in a string": (
        CALL.replace("Zürich", r'</tool_call> \"</tool_call>') + "\nb", "", "b",
        [("get_weather", {"city": '</tool_call> "</tool_call>'})],
    ),
    "the end's tag in a string, not closed": (
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}', "", "", [("f", {"a": "</tool_call>"})],
    ),
    "a string that does not end": (
        'a <tool_call>{"name": "f}</tool_call> b', "", 'a <tool_call>{"name": "f}</tool_call> b', [],
    ),
    "a string that does not end, then a call": (
        f'<tool_call>{{"name": "f}}</tool_call>\n{CALL}', "", '<tool_call>{"name": "f}</tool_call>',
        [("get_weather", {"city": "Zürich"})],
    ),
    "a string that ends in another call": (
        f'<tool_call>{{"name": "f}}</tool_call> {CALL} b', "",
        '<tool_call>{"name": "f}</tool_call>\nb', [("get_weather", {"city": "Zürich"})],
    ),
    "not closed, but whole": ('<tool_call>\n{"name": "f", "arguments": {}}', "", "", [("f", {})]),
    "broken JSON stays": ('a <tool_call>{"name": f}</tool_call> b', "", 'a <tool_call>{"name": f}</tool_call> b', []),
    "cut in the middle stays": ('<tool_call>{"name": "f', "", '<tool_call>{"name": "f', []),
    "NaN is no JSON": (
        '<tool_call>\n{"name": "f", "arguments": {"a": NaN}}\n</tool_call>', "",
        '<tool_call>\n{"name": "f", "arguments": {"a": NaN}}\n</tool_call>', [],
    ),
    "Infinity in text is none either": (
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": -Infinity}"}</tool_call>', "",
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": -Infinity}"}</tool_call>', [],
    ),
    "a long call": (
        f"a\n{LONG}\n{CALL} b", "", "a\nb", [("write", LONG_ARGUMENTS), ("get_weather", {"city": "Zürich"})],
    ),
    "a long call that is not closed": (LONG[: -len("}\n</tool_call>")], "", "", [("write", LONG_ARGUMENTS)]),
    "a long call with a member after its arguments": (
        LONG.replace("}\n</tool_call>", ', "id": 5}</tool_call>'), "", "", [("write", LONG_ARGUMENTS)],
    ),
    "a long call with text after its arguments": (
        LONG.replace("}\n</tool_call>", "} oh</tool_call>"), "", "} oh", [("write", LONG_ARGUMENTS)],
    ),
    "long, but no call": (LONG.replace('"name"', '"title"'), "", LONG.replace('"name"', '"title"'), []),
    "long, but no object from the start": (
        LONG.replace('{"text": "', '{"n": NaN, "text": "'), "", LONG.replace('{"text": "', '{"n": NaN, "text": "'), [],
    ),
    "a thought at once after another": (
        "<think>a</think>\n<think>\nb</think>\n\nc", "a\nb", "c", [],
    ),
    "a thought that begins twice": ("<think>\n<think>\na</think>b", "a", "b", []),
    "a tag that ends no thought, at the beginning": ("\n</think>\n\nHi", "", "Hi", []),
    "a thought that ends twice": ("<think>a</think>\n</think>\nHi", "a", "Hi", []),
    "a tag that ends no thought, on a line": ("Hm, yes.\n</think>\n\nIt is 4.", "", "Hm, yes.\nIt is 4.", []),
    "a tag that ends no thought, in a sentence": ("The </think> tag", "", "The </think> tag", []),
    "a tag after a thought": ("<think>a</think>See:\n</think>\nb", "a", "See:\n</think>\nb", []),
    "a beginning of a tag after a thought": ("<think>a</think> <thin", "a", "<thin", []),
    "almost tags": ("a < b </think <tool_cal l>", "", "a < b </think <tool_cal l>", []),
    "spaces at the end": ("done  \n", "", "done  \n", []),
    "spaces at the beginning": ("  done", "", "  done", []),
}  # fmt: skip


def take(answers: AnswerParser, pieces: list[str]) -> tuple[str, str, list[tuple[str, object]]]:
    parser = WholeCalls(answers)
    parts: list[AnswerPart] = [part for piece in pieces for part in parser.push(piece)] + parser.flush()
    calls = [(part.tool_call.name, json.loads(part.tool_call.arguments)) for part in parts if part.tool_call]
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts), calls


@pytest.mark.parametrize("name", CASES)
def test_whole_and_in_any_pieces(name: str) -> None:
    text, reasoning, content, calls = CASES[name]
    rng = Random(1)
    cuts = [[text], list(text)]
    for _ in range(30):
        at = sorted(rng.randint(0, len(text)) for _ in range(4))
        cuts.append([text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)])
    for pieces in cuts:
        assert take(AnswerParser(BOTH), pieces) == (reasoning, content, calls), pieces


def told(answers: AnswerParser, pieces: list[str]) -> list[AnswerPart]:
    return [part for piece in pieces for part in answers.push(piece)] + answers.flush()


@pytest.mark.parametrize("size", [1, 3, 7, 20])
def test_arguments_come_as_they_are_written_and_the_name_first(size: int) -> None:
    parser, held = AnswerParser(BOTH), 0
    for i in range(0, len(LONG), size):
        parts = parser.push(LONG[i : i + size])
        held = held + size if not parts else 0
        assert held <= 120 + size
    parts = told(AnswerParser(BOTH), [LONG[i : i + size] for i in range(0, len(LONG), size)])
    assert parts[0].tool_call == ("write", "")
    assert all(part.arguments for part in parts[1:])
    assert "".join(part.arguments for part in parts) == json.dumps(LONG_ARGUMENTS)
    assert len(parts) > (len(json.dumps(LONG_ARGUMENTS)) - TOLD_AFTER) / size - 3


def test_arguments_that_are_cut_off_are_told_as_far_as_they_come() -> None:
    for end in range(LONG.index('{"text"') + TOLD_AFTER, LONG.index("}\n</tool_call>")):
        whole, pieces = told(AnswerParser(BOTH), [LONG[:end]]), told(AnswerParser(BOTH), list(LONG[:end]))
        (call,), (same,) = (
            [part.tool_call for part in _joined(parts) if part.tool_call is not None] for parts in (whole, pieces)
        )
        assert call == same
        assert json.dumps(LONG_ARGUMENTS).startswith(call.arguments)


def _joined(parts: list[AnswerPart]) -> list[AnswerPart]:
    call = parts[0].tool_call
    assert call is not None
    return [AnswerPart(tool_call=call._replace(arguments="".join(part.arguments for part in parts)))]


def test_random_texts_mean_the_same_in_any_pieces() -> None:
    """Pieces of tags, calls and JSON in any order, cut anywhere."""
    rng = Random(3)
    scraps = [*THINK, CALL, LONG, LONG[:90], "\n", '{"name": "f", "arguments": {', '"a": ', '"b c"', "}", "[",
              "NaN", "1e5", "<tool_call>", "</tool_call>", ", ", "x" * 70, '\\"', "<", "</th"]  # fmt: skip
    for _ in range(400):
        text = "".join(rng.choices(scraps, k=rng.randint(1, 9)))
        thinking = rng.random() < 0.3
        wanted = take_raw(AnswerParser(BOTH, thinking=thinking), [text])
        assert take_raw(AnswerParser(BOTH, thinking=thinking), list(text)) == wanted, text
        at = sorted(rng.randint(0, len(text)) for _ in range(3))
        pieces = [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]
        assert take_raw(AnswerParser(BOTH, thinking=thinking), pieces) == wanted, text


def take_raw(answers: AnswerParser, pieces: list[str]) -> tuple[str, str, list[ToolCallPart]]:
    parser = WholeCalls(answers)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.flush()
    calls = [part.tool_call for part in parts if part.tool_call is not None]
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts), calls


def test_a_prompt_that_has_opened_the_thinking() -> None:
    assert take(AnswerParser(BOTH, thinking=True), list("<think>\nhm\n</think>\n\nyes")) == ("hm", "yes", [])
    assert take(AnswerParser(BOTH, thinking=True), list("\nhm\n</think>\n\nyes")) == ("hm", "yes", [])


def test_what_is_not_looked_for_is_content() -> None:
    text = f"<think>a</think> {CALL}"
    assert take(AnswerParser(AnswerFormat()), [text]) == ("", text, [])
    assert take(AnswerParser(AnswerFormat(thoughts=THINK)), [text])[:2] == ("a", CALL)


def test_text_comes_as_soon_as_it_can_be_no_tag() -> None:
    parser = AnswerParser(BOTH)
    assert [part.content for part in parser.push("Hello <to")] == ["Hello"]
    assert [part.content for part in parser.push("day")] == [" <today"]


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{{ messages }}", AnswerFormat()),
        ('<tool_call>\\n{\\"name\\": <function-name>', AnswerFormat(calls=HERMES)),
        ("<tool_call>\n<function=example>", AnswerFormat()),
        ("{% if '</think>' in content %}", AnswerFormat(thoughts=THINK)),
    ],
)
def test_the_form_is_read_from_the_template(template: str, form: AnswerFormat) -> None:
    assert AnswerFormat.of_template(template) == form


def test_what_can_be_no_call_is_content_at_once() -> None:
    text = '<tool_call>{"name": "f}\n</tool_call> b'
    assert [part.content for part in AnswerParser(BOTH).push(text)] == [text[:-2], " b"]


@pytest.mark.parametrize(
    "arguments",
    ['{"a": 1e999}', '{"a" :[1.10, "\\ud800"]}', "{ }", '{"arguments": {}, "b": 9.0}', f'{{"a": {"7" * 5000}}}'],
    ids=["a large number", "a lone surrogate", "nothing", "a name of the call's own", "thousands of digits"],
)
def test_arguments_are_as_the_model_has_written_them(arguments: str) -> None:
    for text in (
        f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>',
        f'<tool_call> {{ "arguments":1,"x": {{"name": 2}} , "arguments" : {arguments}, "name": "f" }} </tool_call>',
    ):
        parser = WholeCalls(AnswerParser(BOTH))
        parts = parser.push(text) + parser.flush()
        assert [part.tool_call for part in parts] == [("f", arguments)]
