"""Answers in the harmony format: the same whatever the pieces, and malformed messages stay in the content."""

import json
from pathlib import Path
from random import Random

import pytest

from jaxinfer.sampling import SamplingParams
from jaxinfer.text import Tokenizer
from jaxinfer.text.answer.calls.json_calls import HERMES
from jaxinfer.text.answer.harmony import AnalysisTokens
from jaxinfer.text.answer.parser import AnswerFormat, parse_answer
from jaxinfer.text.answer.parts import WholeCalls
from jaxinfer.text.answer.thoughts import THINK
from jaxinfer.text.template.chat_template import ChatTemplate
from jaxinfer.text.template.messages import template_message
from jaxinfer.text.template.template_process import TemplateLimits
from tests.material import material
from tests.text.folders import byte_level_folder

HARMONY = AnswerFormat(thoughts=THINK, calls=HERMES, channels=True)
NEXT = "<|end|><|start|>assistant"
ANALYSIS = "<|channel|>analysis<|message|>Hm.\n\nYes."
FINAL = "<|channel|>final<|message|>It is 4."
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Zürich"}'
CALLED = [("get_weather", {"city": "Zürich"})]
SPACES = f"<|channel|>final{' ' * 200}!<|message|>a"
LONG = "<|channel|>final " + "x" * 300

CASES = {
    "reasoning and answer": (ANALYSIS + NEXT + FINAL, "Hm.\n\nYes.", "It is 4.", []),
    "with the token that ends it": (ANALYSIS + NEXT + FINAL + "<|return|>", "Hm.\n\nYes.", "It is 4.", []),
    "line breaks between messages": (
        f"{ANALYSIS}<|end|>\n<|start|>assistant{FINAL}", "Hm.\n\nYes.", "It is 4.", [],
    ),
    "answer alone": (FINAL, "", "It is 4.", []),
    "cut in the reasoning": (ANALYSIS, "Hm.\n\nYes.", "", []),
    "cut in a header": (ANALYSIS + "<|end|><|start|>assistant<|channel|>comm", "Hm.\n\nYes.", "", []),
    "cut in a tag": (FINAL + "<|en", "", "It is 4.<|en", []),
    "call": (ANALYSIS + NEXT + CALL + "<|call|>", "Hm.\n\nYes.", "", CALLED),
    "call whose end is not shown": (CALL, "", "", CALLED),
    "recipient beside the role": (
        ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Zürich"}<|call|>', "", "", CALLED,
    ),
    "recipient beside the role of a later message": (
        f'{ANALYSIS}{NEXT} to=functions.get_weather<|channel|>commentary json<|message|>{{"city": "Zürich"}}',
        "Hm.\n\nYes.", "", CALLED,
    ),
    "call in the reasoning's channel": (CALL.replace("commentary", "analysis"), "", "", CALLED),
    "no space before the constraint": (CALL.replace(" <|constrain|>", "<|constrain|>"), "", "", CALLED),
    "no arguments": ("<|channel|>commentary to=functions.f<|message|><|call|>", "", "", [("f", {})]),
    "preamble, then calls": (
        f"<|channel|>commentary<|message|>I look.{NEXT}{CALL}<|call|><|start|>assistant{CALL}<|call|>",
        "", "I look.", CALLED * 2,
    ),
    "several of one kind": (
        f"{ANALYSIS}{NEXT}<|channel|>commentary<|message|>I think.{NEXT}{ANALYSIS}{NEXT}{FINAL}",
        "Hm.\n\nYes.\nHm.\n\nYes.", "I think.\nIt is 4.", [],
    ),
    "no end before the next message": (ANALYSIS + FINAL, "Hm.\n\nYes.", "It is 4.", []),
    "no channel": ("<|start|>assistant<|message|>It is 4.", "", "It is 4.", []),
    "plain text": ("  Hello <|world", "", "  Hello <|world", []),
    "plain text that begins as a recipient": ("to=day is a day", "", "to=day is a day", []),
    "a message that goes on": (f"is 4.{NEXT}{FINAL}", "", "is 4.\nIt is 4.", []),
    "spaces only": (" \n", "", " \n", []),
    "empty": ("", "", "", []),
    "empty messages": (f"<|channel|>analysis<|message|>{NEXT}<|channel|>final<|message|><|return|>", "", "", []),
    "broken JSON stays": (CALL + "}<|call|>", "", CALL + "}<|call|>", []),
    "arguments that are no object stay": (
        "<|channel|>commentary to=functions.f<|message|>[1]", "",
        "<|channel|>commentary to=functions.f<|message|>[1]", [],
    ),
    "cut in the arguments stays": (CALL[:-5], "", CALL[:-5], []),
    "another recipient is thought": (
        f"<|channel|>analysis to=python code<|message|>1 + 1<|call|><|start|>assistant{FINAL}", "1 + 1", "It is 4.", [],
    ),
    "another recipient in commentary": (
        f'<|channel|>commentary to=container.exec json<|message|>{{"cmd": ["ls"]}}<|call|><|start|>assistant{FINAL}',
        '{"cmd": ["ls"]}', "It is 4.", [],
    ),
    "another recipient before the channel": (
        f"<|start|>assistant to=browser.search<|channel|>commentary<|constrain|>json<|message|>{{}}<|call|>{FINAL}",
        "{}", "It is 4.", [],
    ),
    "a second channel": (
        "<|channel|>analysis<|channel|>final<|message|>It is 4.<|return|>", "", "It is 4.", [],
    ),
    "a second channel of thought": (
        f"<|channel|>commentary<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{FINAL}",
        "Hm.", "It is 4.", [],
    ),
    "a second channel with a call": (
        '<|channel|>analysis<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
        "", "", [("f", {"a": 1})],
    ),
    "a long call": (
        f'<|channel|>commentary to=functions.f json<|message|> {{"text": "{"a b " * 30}"}}<|call|>',
        "", "", [("f", {"text": "a b " * 30})],
    ),
    "a long text that is no object": (
        f'<|channel|>commentary to=functions.f json<|message|>[{"1, " * 30}]<|call|>',
        "", f'<|channel|>commentary to=functions.f json<|message|>[{"1, " * 30}]<|call|>', [],
    ),
    "another channel stays": (
        f"<|channel|>notes<|message|>a<|end|><|start|>assistant{FINAL}",
        "", "<|channel|>notes<|message|>a<|end|>\nIt is 4.", [],
    ),
    "another role stays": ("<|start|>user<|message|>Hi<|end|>", "", "<|start|>user<|message|>Hi<|end|>", []),
    "no message after the header": (
        f"<|channel|>final It is<|end|><|start|>assistant{FINAL}", "", "<|channel|>final It is<|end|>\nIt is 4.", [],
    ),
    "text in a header that is cut": ("<|channel|>final It is", "", "<|channel|>final It is", []),
    "a header without end": (LONG + FINAL, "", LONG + "\nIt is 4.", []),
    "a header of spaces": (SPACES, "", SPACES, []),
}  # fmt: skip


def gpt_oss_template() -> str:
    return material("chat_templates", "openai-gpt-oss-120b.jinja").read_text()


def take(form: AnswerFormat, pieces: list[str]) -> tuple[str, str, list[tuple[str, object]]]:
    parser = WholeCalls(form.parser())
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.flush()
    assert all(any(part) for part in parts)
    calls = [(part.tool_call.name, json.loads(part.tool_call.arguments)) for part in parts if part.tool_call]
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts), calls


def cuts(text: str) -> list[list[str]]:
    rng = Random(1)
    made = [[text], list(text)]
    for _ in range(40):
        at = sorted(rng.randint(0, len(text)) for _ in range(5))
        made.append([text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)])
    return made


@pytest.mark.parametrize("name", CASES)
def test_whole_and_in_any_pieces(name: str) -> None:
    text, reasoning, content, calls = CASES[name]
    for pieces in cuts(text):
        assert take(HARMONY, pieces) == (reasoning, content, calls), pieces


@pytest.mark.long
def test_no_text_is_lost_in_any_order_of_tags() -> None:
    rng = Random(2)
    tags = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"]
    words = ["assistant", "analysis", "final", "commentary", " to=functions.f ", "json", "{}", "\n", "to=python"]
    for _ in range(3000):
        text = "".join(rng.choice(tags + words) + rng.choice(["", "", "<one>", " two! "]) for _ in range(8))
        found = [take(HARMONY, pieces) for pieces in cuts(text)[:8]]
        assert all(each == found[0] for each in found), text
        reasoning, content, calls = found[0]
        for word in ("<one>", "two!"):
            kept = (reasoning + content + str(calls)).count(word)
            assert kept == text.count(word), (text, found[0])


def test_text_comes_as_soon_as_it_can_be_no_tag() -> None:
    parser = HARMONY.parser()
    assert [part.content for part in parser.push("<|channel|>final<|message|>Hello <|e")] == ["Hello "]
    assert [part.content for part in parser.push("lse")] == ["<|else"]
    assert [part.reasoning for part in parser.push("<|channel|>analysis<|message|>Hm")] == ["Hm"]


def test_what_is_not_looked_for_stays_in_the_content() -> None:
    text = ANALYSIS + NEXT + CALL
    assert take(HARMONY._replace(calls=None), [text]) == ("Hm.\n\nYes.", "<|start|>assistant" + CALL, [])
    assert take(HARMONY._replace(thoughts=None), [text]) == ("", ANALYSIS + "<|end|>", CALLED)


def test_tokens_of_the_reasoning_are_counted() -> None:
    ids = {"<|channel|>": 1, "<|message|>": 2, "<|end|>": 3, "<|start|>": 4, "<|return|>": 5}
    counter = AnalysisTokens(ids, [7, 8])
    counter.push([1, 7, 8, 2, 20, 21, 7])
    counter.push([22, 3, 4, 9, 1, 10, 2, 7, 8, 30, 5])
    assert counter.count == 4


def test_the_form_is_read_from_the_template_of_gpt_oss() -> None:
    assert AnswerFormat.of_template(gpt_oss_template()) == HARMONY


def test_the_template_of_gpt_oss_takes_an_answer_back() -> None:
    template = ChatTemplate({"default": gpt_oss_template()}, {}, TemplateLimits())
    answer = parse_answer(ANALYSIS + NEXT + CALL, HARMONY)
    calls = [{"function": call._asdict()} for call in answer.tool_calls]
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "reasoning_content": answer.reasoning, "tool_calls": calls},
        {"role": "tool", "content": "21"},
    ]
    try:
        text = template.render([template_message(message, "messages") for message in messages])
    finally:
        template.close()
    assert ANALYSIS + "<|end|>" in text
    assert '<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Zürich"}' in text


def test_the_text_has_the_tags_where_they_are_looked_for(tmp_path: Path) -> None:
    tokenizer = Tokenizer(byte_level_folder(tmp_path))
    assert not HARMONY.params(SamplingParams(), tokenizer).skip_special_tokens
    assert AnswerFormat(thoughts=THINK).params(SamplingParams(), tokenizer).skip_special_tokens
    assert parse_answer(ANALYSIS + NEXT + CALL, HARMONY).tool_calls[0].name == "get_weather"
