"""Structural tags and tool calls: random texts, taken apart by the parser and validated by jsonschema; what may be
written by letters and by ids; what is refused."""

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tokenizers import Tokenizer

from jaxinfer.constraint import Constraint
from jaxinfer.errors import ParameterError
from jaxinfer.grammar.grammars import Grammars
from jaxinfer.sampling import SamplingParams
from jaxinfer.serving.errors import RequestError
from jaxinfer.text.answer.calls.json_calls import HERMES
from jaxinfer.text.answer.parser import AnswerFormat
from jaxinfer.text.answer.thoughts import THINK
from tests.grammar.calls import CALL, CALLED, Writer, accepted, check_calls, constraint_of, spelled, taken_apart
from tests.grammar.walks import END, FILE, SIZE, TOKENIZER, compiled, legal
from tests.material import material
from tests.text.folders import byte_level_folder, with_tokens

GRAMMARS = Grammars(FILE, SIZE, (END,))
SUM = {
    "name": "sum",
    "strict": True,
    "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"],
        "additionalProperties": False,
    },
}  # fmt: skip
SAY = {
    "name": "say",
    "parameters": {
        "type": "object", "properties": {"text": {"type": "string", "maxLength": 8}}, "required": ["text"],
        "additionalProperties": False,
    },
}  # fmt: skip
PING: dict[str, Any] = {"name": "ping"}
TOOLS = [SUM, SAY, PING]
ONE_SUM = '\n{"name": "sum", "arguments": {"a": 1, "b": 2}}\n'
COLOUR = {"type": "object", "properties": {"c": {"enum": ["red", "blue"]}}, "required": ["c"],
          "additionalProperties": False}  # fmt: skip


TAGS = ("<tool_call>", "</tool_call>", "<tool_", "call>", "</think>")
"""In letters, which the parser takes for a tag wherever they stand."""


def texts(constraint: Constraint | None, count: int = 20, phrases: Sequence[str] = TAGS) -> list[str]:
    assert constraint is not None
    writers = [Writer(GRAMMARS, random.Random(seed), 300, phrases) for seed in range(count)]
    found = [text for writer in writers if (text := writer.write(constraint)) is not None]
    assert len(found) > count / 2
    return found


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize("one", [True, False])
@pytest.mark.parametrize("reasoning", [True, False])
def test_required_is_calls_and_nothing_else(one: bool, reasoning: bool) -> None:
    form = AnswerFormat(thoughts=THINK if reasoning else None, calls=HERMES)
    fields: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": not one}
    counts = set()
    for text in texts(constraint_of(TOOLS, form=form, **fields)):
        answer = taken_apart(text, random.Random(1), form)
        check_calls(answer, TOOLS)
        counts.add(len(answer.tool_calls))
        assert answer.tool_calls
        assert not answer.content
        assert not answer.reasoning
    assert (counts == {1}) is one


def test_a_named_function_is_called_once() -> None:
    for text in texts(constraint_of(TOOLS, tool_choice=named("say"))):
        answer = taken_apart(text, random.Random(1))
        check_calls(answer, [SAY])
        assert len(answer.tool_calls) == 1
        assert not answer.content


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_are_called(mode: str) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named("say"), named("ping")]}}
    seen = set()
    for text in texts(constraint_of(TOOLS, tool_choice=choice)):
        answer = taken_apart(text, random.Random(1))
        check_calls(answer, [SAY, PING], strict_only=mode == "auto")
        seen |= {call.name for call in answer.tool_calls}
        assert mode == "auto" or answer.tool_calls
    assert seen == {"say", "ping"}


@pytest.mark.parametrize("one", [True, False])
def test_auto_with_a_strict_tool_is_free_text_and_valid_calls(one: bool) -> None:
    """Arguments of tools that are not strict are any object."""
    counts, contents, wild = set(), 0, 0
    for text in texts(constraint_of(TOOLS, parallel_tool_calls=not one), 60):
        answer = taken_apart(text, random.Random(1))
        check_calls(answer, TOOLS, strict_only=True)
        assert "<tool_call>" not in answer.content
        counts.add(len(answer.tool_calls))
        contents += bool(answer.content)
        wild += any(call.name == "ping" and call.arguments != "{}" for call in answer.tool_calls)
        assert not one or not answer.tool_calls or text.endswith("</tool_call>")
    assert contents
    assert wild
    assert {0, 1} <= counts
    assert (counts == {0, 1}) is one


def test_auto_is_free_where_nothing_is_asked_for() -> None:
    assert constraint_of([SAY, PING]) is None
    assert constraint_of([SAY, PING], tool_choice="auto", parallel_tool_calls=True) is None
    assert constraint_of([SAY], parallel_tool_calls=False) is not None


CONTENTS = {
    "schema": (Constraint.schema(COLOUR), lambda text: jsonschema.validate(json.loads(text), COLOUR)),
    "object": (Constraint("json_object"), lambda text: jsonschema.validate(json.loads(text), {"type": "object"})),
    "regex": (
        Constraint.text("regex", "(.|\n)*[a-z>]"),
        lambda text: re.fullmatch("(.|\n)*[a-z>]", text) or pytest.fail(text),
    ),
    "choice": (Constraint.choice(["yes", "<tool>"]), lambda text: text in ("yes", "<tool>") or pytest.fail(text)),
    "tag": (
        Constraint.structural_tag({"format": {"type": "tag", "begin": "<a>", "content": {"type": "any_text"},
                                              "end": "</a>"}}),
        lambda text: re.fullmatch("<a>(.|\n)*</a>", text) or pytest.fail(text),
    ),
}  # fmt: skip


@pytest.mark.few(4)
@pytest.mark.parametrize("name", CONTENTS)
def test_a_format_beside_tools_is_calls_or_content_that_fits(name: str) -> None:
    content, check = CONTENTS[name]
    called = 0
    for text in texts(constraint_of(TOOLS, content), 60):
        answer = taken_apart(text, random.Random(1))
        called += bool(answer.tool_calls)
        check_calls(answer, TOOLS, strict_only=True)
        if answer.tool_calls:
            assert not answer.content
        else:
            check(text)
            assert answer.content == text
    assert 0 < called < 60


@pytest.mark.parametrize("name", ["regex", "tag"])
def test_content_beside_tools_has_no_call(name: str) -> None:
    """Which its own grammar would allow, and the parser would take for one."""
    constraint, alone = constraint_of(TOOLS, CONTENTS[name][0]), CONTENTS[name][0]
    assert constraint is not None
    for inner, right in (("<tool_cal>", True), ('<tool_call>{"name": "evil"}</tool_call>', False)):
        assert accepted(GRAMMARS, alone, f"<a>{inner}</a>")
        assert accepted(GRAMMARS, constraint, f"<a>{inner}</a>") is right


@pytest.mark.parametrize("inner", ["<tool_call>", "<tool_call></tool_call>", "<tool_call> {", "</tool_call> "])
def test_tags_in_a_string_of_json_are_content(inner: str) -> None:
    constraint = constraint_of(TOOLS, Constraint("json_object"))
    text = json.dumps({inner: [inner], "name": {"arguments": inner}})
    assert constraint is not None
    assert accepted(GRAMMARS, constraint, text)
    answer = taken_apart(text, random.Random(1))
    assert (answer.content, answer.tool_calls) == (text, [])


def test_the_end_of_a_call_in_its_arguments_is_text() -> None:
    constraint = constraint_of(TOOLS, tool_choice=named("ping"), parallel_tool_calls=False)
    loose = constraint_of([PING], parallel_tool_calls=False)
    call = '<tool_call>\n{"name": "ping", "arguments": {"a": "</tool_call>"}}\n</tool_call>'
    assert constraint is not None
    assert loose is not None
    assert not accepted(GRAMMARS, constraint, call)  # it has no parameters
    assert accepted(GRAMMARS, loose, call)
    assert taken_apart(call, random.Random(1)).tool_calls == [("ping", '{"a": "</tool_call>"}')]


@pytest.mark.parametrize("name", ["phi3-v", "qwen3", pytest.param("llama3.2", marks=pytest.mark.long)])
def test_calls_with_other_tokenizers(name: str) -> None:
    """Of which Qwen's alone has the tags as tokens."""
    file = material("tokenizers", name, "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(file))
    check_both_ways(file, tokenizer.get_vocab_size())
    assert (tokenizer.token_to_id("<tool_call>") is not None) is (name == "qwen3")


@pytest.mark.parametrize("special", [True, False])
def test_calls_whose_tags_are_control_tokens_or_not(tmp_path: Path, special: bool) -> None:
    folder = with_tokens(byte_level_folder(tmp_path / "model"), "<tool_call>", "</tool_call>", special=special)
    check_both_ways(folder / "tokenizer.json", 1000)


def check_both_ways(file: Path, size: int) -> None:
    """A call as the tokenizer itself would have it, and with tags in letters."""
    grammars = Grammars(file, size, (0,))
    ways: list[tuple[dict[str, Any], str]] = [({"tool_choice": "required"}, ""), ({}, "Let me see. \u00e9\n")]
    for fields, before in ways:
        constraint = constraint_of(TOOLS, **fields)
        assert constraint is not None
        matcher = grammars.compile(SamplingParams(structured_outputs=constraint), frozenset({0})).grammar
        for body in (ONE_SUM, ONE_SUM.replace('"b"', '"c"')):
            text = f"{before}<tool_call>{body}</tool_call>"
            in_letters = [
                each for piece in re.split("(?<=<)", text) for each in grammars._tokenizer.tokenize_str(piece)
            ]
            for tokens in (grammars._tokenizer.tokenize_str(text), in_letters):
                taken = matcher.deep_copy()
                right = taken.try_consume_tokens(tokens) == len(tokens) and taken.is_accepting()
                assert right is (body == ONE_SUM)


def test_a_format_says_nothing_of_calls_that_are_required() -> None:
    for text in texts(constraint_of(TOOLS, Constraint.schema(COLOUR), tool_choice="required")):
        assert taken_apart(text, random.Random(1)).tool_calls


@pytest.mark.parametrize("begin", [CALL, "<tool_call>"])
@pytest.mark.parametrize("end", [CALLED, "</tool_call>"])
def test_tags_are_tags_by_their_ids_and_by_their_letters(begin: str | int, end: str | int) -> None:
    ways: list[dict[str, Any]] = [{"tool_choice": "required"}, {"tool_choice": named("sum")}, {}]
    for fields in ways:
        constraint = constraint_of(TOOLS, **fields)
        assert constraint is not None
        assert accepted(GRAMMARS, constraint, begin, ONE_SUM, end)
        for wrong in ("\n{}\n", ONE_SUM.replace("sum", "sub"), ONE_SUM.replace("2", '"2"'), ONE_SUM.replace("b", "c")):
            assert not accepted(GRAMMARS, constraint, begin, wrong, end)
    free = constraint_of(TOOLS)
    assert free is not None
    assert accepted(GRAMMARS, free, "a <tool_", "calls> ", begin, ONE_SUM, end, " b ", begin, ONE_SUM, end)
    assert not accepted(GRAMMARS, free, "a ", begin, " b")
    assert not accepted(GRAMMARS, free, "a ", begin)


def test_what_follows_the_only_call_is_the_end() -> None:
    ways: list[dict[str, Any]] = [{"tool_choice": named("sum")}, {"parallel_tool_calls": False}]
    for fields in ways:
        constraint = constraint_of(TOOLS, **fields)
        assert constraint is not None
        matcher = compiled(GRAMMARS, constraint)
        matcher.accept([CALL])
        assert matcher.grammar.consume_tokens(GRAMMARS._tokenizer.tokenize_str(ONE_SUM))
        assert legal(GRAMMARS, matcher, SIZE) != [END]
        matcher.accept([CALLED])
        assert matcher.ended


def test_the_part_that_is_refused_is_named() -> None:
    unique = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    constraint = constraint_of([SUM, {"name": "f", "parameters": unique}], tool_choice="required")
    assert constraint is not None
    with pytest.raises(ParameterError, match=r"^tools\[1\]\.function\.parameters: .*uniqueItems"):
        compiled(GRAMMARS, constraint)
    assert constraint_of([SUM, {"name": "f", "parameters": unique}]) is not None  # not strict: any object
    for inner, said in (
        ({"type": "json_schema", "json_schema": {"contains": {}}}, r"it\.format\.content\.json_schema: .*contains"),
        ({"type": "json_schema", "json_schema": {"not": {}}}, r"it\.format\.content\.json_schema: .*no text"),
        ({"type": "regex", "pattern": "("}, r"it\.format\.content\.pattern: .*regex"),
        ({"type": "grammar", "grammar": "start: ("}, r"it\.format\.content\.grammar: "),
    ):
        tag = {"format": {"type": "tag", "begin": "<a>", "content": inner, "end": "</a>"}}
        with pytest.raises(ParameterError, match=said):
            compiled(GRAMMARS, Constraint.structural_tag(tag, "it"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (Constraint.choice(["a <tool_call>"], "guided_choice"), "guided_choice: has '<tool_call>'"),
    ],
)
def test_content_that_could_not_be_told_from_calls_is_refused(content: Constraint, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        constraint_of(TOOLS, content)


LARK = 'start: "a" (LETTER | "<")* | "\\n" LETTER+\nLETTER: /[a-z_>]/\n'
"""Whose texts may have a call's tag, but not at their beginning."""


def test_a_grammar_beside_tools_is_content_without_calls() -> None:
    """Or calls, as beside a JSON Schema; the parser finds no call in what the grammar wrote."""
    content = Constraint.text("grammar", LARK, "guided_grammar")
    constraint = constraint_of(TOOLS, content)
    assert constraint is not None
    kinds, draw = Counter[bool](), random.Random(5)
    for _ in range(40):
        text = Writer(GRAMMARS, draw, 120, phrases=["<tool_call", "a"]).write(constraint)
        if text is None:
            continue
        answer = taken_apart(text, draw)
        check_calls(answer, TOOLS, strict_only=True)
        kinds[bool(answer.tool_calls)] += 1
        if not answer.tool_calls:
            assert "<tool_call>" not in text
            assert accepted(GRAMMARS, content, text)
    assert kinds[True] >= 5
    assert kinds[False] >= 5


def test_the_tag_is_excluded_letter_by_letter_and_at_the_end_of_other_tokens() -> None:
    constraint = constraint_of(TOOLS, Constraint.text("grammar", LARK, "x"))
    assert constraint is not None
    matcher = compiled(GRAMMARS, constraint)
    matcher.accept(spelled("ab<tool_call"))
    closing = {id for id in range(SIZE) if TOKENIZER.decode([id]).startswith(">")}
    assert not closing & set(legal(GRAMMARS, matcher, SIZE))
    copied = matcher.copy()
    copied.accept(spelled("a"))
    assert closing & set(legal(GRAMMARS, copied, SIZE))
    assert CALL not in legal(GRAMMARS, copied, SIZE)
    assert CALL in legal(GRAMMARS, compiled(GRAMMARS, constraint), SIZE)


@pytest.mark.parametrize("grammar", ['start: "<" /[a-z_]+/ ">"', 'start: /\\n*/ "<tool_call>b"', "start: /(?s:.*)/"])
def test_a_grammar_that_may_begin_as_a_call_does_is_refused(grammar: str) -> None:
    constraint = constraint_of(TOOLS, Constraint.text("grammar", grammar, "guided_grammar"))
    assert constraint is not None
    with pytest.raises(ParameterError, match="guided_grammar: may begin as a tool call does"):
        compiled(GRAMMARS, constraint)


CHANNELS = AnswerFormat(thoughts=THINK, calls=HERMES, channels=True)


def test_forms_whose_calls_cannot_be_constrained() -> None:
    """Strict tools, and one call at a time, are what clients send with each request: these do what they can."""
    for form, said in ((CHANNELS, "in channels"), (AnswerFormat(), "not taken out")):
        with pytest.raises(RequestError, match=f"tool_choice: is not supported yet .*{said}"):
            constraint_of(TOOLS, form=form, tool_choice="required")
        assert constraint_of(TOOLS, form=form, parallel_tool_calls=False) is None
    with pytest.raises(RequestError, match=r"tools\[0\]: is not supported yet for an answer that goes on"):
        constraint_of(TOOLS, continue_final_message=True)
    assert constraint_of([SAY], continue_final_message=True, parallel_tool_calls=False) is None


INTEGER, TEXT = {"type": "json_schema", "json_schema": {"type": "integer"}}, {"type": "any_text"}
NUMBER_TAG = {"type": "tag", "begin": "<n>", "content": INTEGER, "end": "</n>"}
FORMATS: dict[str, tuple[Any, str]] = {
    "older": (
        {"structures": [{"begin": "<n>", "schema": {"type": "integer"}, "end": "</n>"}], "triggers": ["<n"]},
        r"((?!<n)(.|\n))*(<n>-?\d+</n>((?!<n)(.|\n))*)*",
    ),
    "triggered": (
        {"format": {"type": "triggered_tags", "triggers": ["<n"], "tags": [NUMBER_TAG], "at_least_one": True,
                    "excludes": ["z"]}},
        r"((?!<n)[^z])*(<n>-?\d+</n>((?!<n)[^z])*)+",
    ),
    "first alone": (
        {"format": {"type": "triggered_tags", "triggers": ["<n"], "tags": [NUMBER_TAG], "at_least_one": True,
                    "stop_after_first": True}},
        r"((?!<n)(.|\n))*<n>-?\d+</n>",
    ),
    "an added token is the trigger": (
        {"format": {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [
            {"begin": "<tool_call>", "content": INTEGER, "end": "</tool_call>"}]}},
        r"((?!<tool_call>)(.|\n))*(<tool_call>-?\d+</tool_call>((?!<tool_call>)(.|\n))*)*",
    ),
    "separated": (
        {"format": {"type": "tags_with_separator", "tags": [NUMBER_TAG], "separator": ", "}},
        r"(<n>-?\d+</n>(, <n>-?\d+</n>)*)?",
    ),
    "sequence": (
        {"format": {"type": "sequence", "elements": [
            {"type": "tag", "begin": "<think>", "content": TEXT, "end": "</think>"},
            {"type": "regex", "pattern": "[a-c]+"}, {"type": "const_string", "value": "bc"},
            {"type": "or", "elements": [INTEGER, {"type": "const_string", "value": "none"}]},
            {"type": "grammar", "grammar": 'start: "!" | "?"'}, TEXT]}},
        r"<think>((?!</think>)(.|\n))*</think>[a-c]+bc(-?\d+|none)[!?](.|\n)*",
    ),
    "regex in a tag": (
        {"format": {"type": "tag", "begin": "<r>", "content": {"type": "regex", "pattern": r".{2,}\d"}, "end": "</r>"}},
        r"<r>(?!.{2,}?\d</r>(.|\n)).{2,}\d</r>",
    ),
    "special characters": (
        {"format": {"type": "sequence", "elements": [
            {"type": "const_string", "value": "a\\\"/\x7f\u2028é😀\n"}, {"type": "regex", "pattern": r"[a/]/\n"}]}},
        "a\\\\\"/\x7f\u2028é😀\n[a/]/\n",
    ),
}  # fmt: skip
"""Structural tags, and a regex of what they allow."""
PHRASES = ("<n>", "</n>", "7</r>", "12", "</think>", "<tool_call>", "</tool_call>", "abc")


@pytest.mark.parametrize("name", FORMATS)
def test_texts_of_structural_tags(name: str) -> None:
    value, pattern = FORMATS[name]
    found = set(texts(Constraint.structural_tag(value), 30, PHRASES))
    assert all(re.fullmatch(pattern, text) for text in found), found
    assert Constraint.structural_tag(json.dumps({"type": "structural_tag", **value})) == Constraint.structural_tag(
        value
    )
    assert len(found) > 1 or name == "special characters"


def test_the_first_trigger_decides() -> None:
    """Of several, of which one is a token; and of one that overlaps itself."""
    other = {**NUMBER_TAG, "begin": "<tool_call>", "end": "</tool_call>"}
    two = {"type": "triggered_tags", "triggers": ["<n", "<tool_call>"], "tags": [NUMBER_TAG, other]}
    constraint = Constraint.structural_tag({"format": two})
    assert accepted(GRAMMARS, constraint, "a <n>1</n>", CALL, "1", CALLED, "b <n>2</n><tool_call>3</tool_call>")
    assert not accepted(GRAMMARS, constraint, "a <n", CALL, "1", CALLED)
    twice = {"type": "triggered_tags", "triggers": ["aa"], "tags": [{"begin": "aab", "content": INTEGER, "end": ";"}]}
    constraint = Constraint.structural_tag({"format": twice})
    assert [accepted(GRAMMARS, constraint, text) for text in ("aab1;", "baab1;xa", "aaab1;", "xaa")] == [
        True, True, False, False
    ]  # fmt: skip


WRONG: dict[str, tuple[Any, str]] = {
    "no object": ([], "it: must be an object"),
    "no JSON": ("{", "it: is not JSON"),
    "neither form": ({}, "it: needs either format, or structures and triggers"),
    "another type": ({"type": "json", "format": TEXT}, r"it\.type: 'json' must be structural_tag"),
    "a field of no form": ({"format": TEXT, "triggers": []}, r"it\.triggers: is not supported"),
    "a form that is not known": ({"format": {"type": "qwen_xml_parameter"}}, r"it\.format\.type: 'qwen_xml_parameter'"),
    "a field that is not known": ({"format": {**TEXT, "max_tokens": 3}}, r"it\.format\.max_tokens: is not supported"),
    "another style": ({"format": {**INTEGER, "style": "qwen_xml"}}, r"it\.format\.style: must be json"),
    "no schema": ({"format": {"type": "json_schema"}}, r"it\.format\.json_schema: must be a JSON Schema"),
    "free text before something": (
        {"format": {"type": "sequence", "elements": [TEXT, INTEGER]}}, r"it\.format\.elements\[0\]: free text must",
    ),
    "free text in a tag without an end": (
        {"format": {"type": "sequence", "elements": [{**NUMBER_TAG, "content": TEXT, "end": ""}, INTEGER]}},
        r"it\.format\.elements\[0\]\.content: free text must",
    ),
    "triggers before something": (
        {"format": {"type": "sequence", "elements": [FORMATS["triggered"][0]["format"], INTEGER]}},
        r"it\.format\.elements\[0\]: free text must",
    ),
    "no triggers": ({"structures": [], "triggers": []}, r"it\.structures: must be a list of 1 to"),
    "a tag that no trigger begins": (
        {"format": {"type": "triggered_tags", "triggers": ["<m"], "tags": [NUMBER_TAG]}},
        r"it\.format: tag 0: begins with none of the triggers",
    ),
    "a trigger of no tag": (
        {"format": {"type": "triggered_tags", "triggers": ["<n", "<m"], "tags": [NUMBER_TAG]}},
        r"it\.format\.triggers: no tag begins with '<m'",
    ),
    "a trigger in another": (
        {"format": {"type": "triggered_tags", "triggers": ["<n", "n"], "tags": [NUMBER_TAG]}},
        r"it\.format\.triggers: 'n' |it\.format\.triggers: '<n' contains another one",
    ),
    "a flag that is none": (
        {"format": {**FORMATS["triggered"][0]["format"], "at_least_one": 1}}, r"it\.format\.at_least_one: must be true",
    ),
    "a string that is none": ({"format": {"type": "const_string", "value": 1}}, r"it\.format\.value: must be a string"),
    "nested too deep": (
        {"format": json.loads('{"type": "or", "elements": [' * 40 + '{"type": "any_text"}' + "]}" * 40)},
        "it: is nested deeper",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_map_is_refused_by_name(name: str) -> None:
    value, said = WRONG[name]
    with pytest.raises(ParameterError, match=said):
        Constraint.structural_tag(value, "it")
