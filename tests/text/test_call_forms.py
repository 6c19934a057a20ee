"""Calls in every form: what models write is read as they meant it, whole and however it is cut."""

import json
from typing import Any, get_args

import pytest

from jaxinfer.serving.config import CallParser
from jaxinfer.text.answer.calls.argument_types import types_of_properties
from jaxinfer.text.answer.calls.registry import CALL_FORMS, form_of_name, form_of_template
from jaxinfer.text.answer.parser import AnswerFormat, AnswerParser, ParsedAnswer, parse_answer
from jaxinfer.text.answer.parts import AnswerPart, WholeCalls
from jaxinfer.text.answer.thoughts import THINK
from tests.material import material
from tests.text.call_renderers import RENDERERS, Calls

TYPES = {"city": "string", "days": "integer", "exact": "boolean", "at": "object", "tags": "array", "note": "string"}
TOOLS: list[tuple[str, dict[str, Any]]] = [
    (name, {"type": "object", "properties": {key: {"type": of} for key, of in TYPES.items()}})
    for name in ("weather", "tools.find-it_2")
]
CASES: dict[str, Calls] = {
    "one": [("weather", {"city": "Oslo"})],
    "two": [("weather", {"city": "Oslo", "days": 3}), ("tools.find-it_2", {"note": "x"})],
    "three of one": [("weather", {"city": city}) for city in ("Oslo", "Bergen", "Bodø")],
    "no arguments": [("weather", {})],
    "two without": [("weather", {}), ("tools.find-it_2", {})],
    "all types": [("weather", {"city": "Oslo", "days": -3, "exact": True, "at": {"a": [1, None]}, "tags": ["a", {}]})],
    "nested": [("weather", {"at": {"b": {"c": {"d": ["}", "]", "{"]}}}})],
    "quotes": [("weather", {"city": 'a "b" \\ c', "tags": ['"', "\\"]})],
    "lines": [("weather", {"city": "a\n\nb\tc", "note": "d\n"})],
    "letters": [("weather", {"city": "Tromsø 東京 🏔", "note": "«é»"})],
    "markup": [("weather", {"city": "<b>a</b> & [c] <x", "tags": ["</b>", "<|x|>"]})],
    "an empty string": [("weather", {"city": "", "days": 0})],
    "looks like a number": [("weather", {"city": "42", "note": "null"})],
    "large": [("weather", {"note": "word " * 300, "days": 123456789012345678901234567890})],
    "false": [("weather", {"exact": False})],
}
THOUGHT = "<think>\nFirst I look.\n</think>\n\n"


def told(parts: list[AnswerPart]) -> ParsedAnswer:
    calls = [part.tool_call for part in parts if part.tool_call is not None]
    return ParsedAnswer("".join(part.content for part in parts), "".join(part.reasoning for part in parts), calls)


def check_cuts(text: str, form: AnswerFormat) -> ParsedAnswer:
    """The answer, which is the same in two pieces cut anywhere, and letter by letter."""
    whole = parse_answer(text, form)
    places = range(1, len(text)) if len(text) < 400 else range(1, len(text), 97)
    for pieces in ([*text], *([text[:at], text[at:]] for at in places)):
        parser = WholeCalls(AnswerParser(form))
        parts = [part for piece in pieces for part in parser.push(piece)] + parser.flush()
        assert told(parts) == whole, pieces[0]
    return whole


def read(text: str, form: AnswerFormat) -> tuple[str, str, list[tuple[str, Any]]]:
    found = check_cuts(text, form)
    return found.content, found.reasoning, [(call.name, json.loads(call.arguments)) for call in found.tool_calls]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", RENDERERS)
def test_calls_are_read(name: str, case: str) -> None:
    form, render = RENDERERS[name]
    answers = AnswerFormat(thoughts=THINK, calls=form).offering(TOOLS)
    calls, text = CASES[case], render(CASES[case])
    assert read(text, answers) == ("", "", list(calls))
    assert read(f"{THOUGHT}I call.\n{text}", answers) == ("I call.", "First I look.", list(calls))


@pytest.mark.parametrize("name", RENDERERS)
def test_what_is_no_call_stays_as_it_was_written(name: str) -> None:
    form, render = RENDERERS[name]
    answers = AnswerFormat(calls=form).offering(TOOLS)
    text = render([("weather", {"city": "Oslo"})])
    for wrong in ("Nothing to call.", form.begins[0], f"Look: {form.begins[0]} and so on", text[: len(text) // 2]):
        assert read(wrong, answers) == (wrong, "", [])


@pytest.mark.parametrize("name", RENDERERS)
def test_text_behind_calls_that_have_an_end_is_content(name: str) -> None:
    form, render = RENDERERS[name]
    calls = [("weather", {"city": "Oslo"})]
    if form.end:
        text = f"{render(calls)}\nThat was it."
        assert read(text, AnswerFormat(calls=form).offering(TOOLS)) == ("That was it.", "", calls)


@pytest.mark.parametrize("name", RENDERERS)
def test_marks_inside_of_strings_end_nothing(name: str) -> None:
    form, render = RENDERERS[name]
    calls = [("weather", {"tags": [f"a {form.end} b", form.begins[0]], "days": 1})]
    assert read(render(calls), AnswerFormat(calls=form).offering(TOOLS)) == ("", "", calls)


def test_without_tools_calls_are_text() -> None:
    for form, render in RENDERERS.values():
        text = render([("weather", {"city": "Oslo"})])
        assert read(text, AnswerFormat(calls=form).offering([])) == (text, "", [])


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "none", "none"),
        ({"type": "integer"}, "three", "three"),
        ({"type": "boolean"}, "True", True),
        ({"type": "number"}, "1e400", None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "None", None),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"const": True}, "true", True),
        ({"$ref": "#/$defs/pair"}, "[1, 2]", [1, 2]),
        ({"$ref": "#/$defs/loop"}, "[1, 2]", "[1, 2]"),
        ({"allOf": [{"$ref": "#/$defs/pair"}, {"description": "two"}]}, "[1, 2]", [1, 2]),
        ({"properties": {}}, '{"a": 1}', {"a": 1}),
        ({"description": "anything"}, "3", "3"),
        (True, "3", "3"),
    ],
)
def test_text_becomes_a_value_of_its_arguments_type(schema: Any, written: str, value: Any) -> None:
    defs = {"pair": {"type": "array"}, "loop": {"$ref": "#/$defs/loop"}}
    tools = [("f", {"properties": {"a": schema}, "$defs": defs})]
    form, _ = RENDERERS["qwen"]
    text = f"<tool_call>\n<function=f>\n<parameter=a>\n{written}\n</parameter>\n</function>\n</tool_call>"
    (call,) = parse_answer(text, AnswerFormat(calls=form).offering(tools)).tool_calls
    if written == "1e400":
        assert call.arguments == '{"a": 1e400}'  # as it is written
    else:
        assert json.loads(call.arguments) == {"a": value}


def test_names_mean_forms() -> None:
    assert {name for form in CALL_FORMS for name in form.names} | {"auto", "none"} == {*get_args(CallParser)}
    mistral, listed = RENDERERS["mistral"][0], RENDERERS["mistral list"][0]
    assert form_of_name("mistral", None) is mistral
    assert form_of_name("mistral", listed) is listed


SHOWN = {
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen3-Coder": "qwen",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral list",
    "meta-llama-Llama-3.1-8B-Instruct": "llama",
    "meta-llama-Llama-3.2-3B-Instruct": "llama",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
}


@pytest.mark.parametrize("template", SHOWN)
def test_templates_show_their_form(template: str) -> None:
    text = material("chat_templates", f"{template}.jinja").read_text()
    assert form_of_template(text) is RENDERERS[SHOWN[template]][0]


@pytest.mark.parametrize("name", [name for name in RENDERERS if name != "hermes"])  # whose first end mark ends it
def test_a_beginning_that_is_none_leaves_later_calls_alone(name: str) -> None:
    form, render = RENDERERS[name]
    calls = [("weather", {"city": "Oslo"})]
    text = f"I write {form.begins[0]} first.\n"
    assert read(text + render(calls), AnswerFormat(calls=form).offering(TOOLS)) == (text.rstrip(), "", calls)


@pytest.mark.parametrize("words", ["your json here", "json", "a\n<arg_value>b</arg_value>"])
def test_words_between_tags_are_no_calls(words: str) -> None:
    form, _ = RENDERERS["glm"]
    text = f"Wrap it in <tool_call>{words}</tool_call> tags."
    assert read(text, AnswerFormat(calls=form).offering(TOOLS)) == (text, "", [])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["qwen", "seed", "minimax", "glm"])
def test_hostile_text_is_read_in_time(name: str) -> None:
    """Some of these took minutes, by backtracking or by looking at all of a text for each of its marks."""
    form, render = RENDERERS[name]
    begin, rest = render([("weather", {"city": "Oslo"})]).split("city", 1)
    assert rest
    answers = AnswerFormat(calls=form).offering(TOOLS)
    for text in (f"{begin}{' ' * 20_000}<{form.end}", f"{begin}tags{rest[:3]}{form.end * 4000}", form.begins[0] * 4000):
        parser = AnswerParser(answers)
        parts = [part for at in range(0, len(text), 997) for part in parser.push(text[at : at + 997])]
        assert told(parts + parser.flush()).tool_calls == []


@pytest.mark.timeout(60)
def test_types_of_schemas_that_refer_to_themselves_are_read_in_time() -> None:
    loop = {"anyOf": [{"$ref": "#/$defs/a"}] * 1400}
    pair = {"anyOf": [{"$ref": "#/$defs/c"}] * 30}
    wide = {"anyOf": [{"anyOf": [{"anyOf": [{"type": "null"}] * 40}] * 40}] * 40}
    schema = {"$defs": {"a": loop, "b": pair, "c": pair}, "properties": {"x": loop, "y": pair, "z": wide}}
    assert types_of_properties(schema)["x"] == frozenset()


def test_a_name_with_half_a_pair_of_surrogates_is_no_call() -> None:
    for name in ("mistral list", "hermes"):
        form, render = RENDERERS[name]
        text = render([("weather", {"city": "word " * 30})]).replace("weather", r"\ud800")
        assert read(text, AnswerFormat(calls=form).offering(TOOLS)) == (text, "", [])
