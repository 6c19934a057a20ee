"""Messages as templates take them: reasoning by any name, and reaching templates by theirs."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from jaxinfer.errors import ParameterError
from jaxinfer.text.template.chat_template import ChatTemplate
from jaxinfer.text.template.messages import REASONING_NAMES, template_message
from jaxinfer.text.template.template_process import TemplateLimits
from tests.material import material
from tests.text.golden_templates import GOLDEN_TEMPLATES

QUESTION = {"role": "user", "content": "Is it warm in Rome?"}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "31"}
FINAL = {"role": "assistant", "content": "Yes."}
NEXT = {"role": "user", "content": "And in Oslo?"}

Render = Callable[..., str]


@pytest.fixture
def render() -> Iterator[Render]:
    made: list[ChatTemplate] = []

    def render(template: str, *messages: dict[str, Any], **options: Any) -> str:
        made.append(ChatTemplate({"default": template}, {}, TemplateLimits()))
        plain = [template_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
        return made[-1].render(plain, now=datetime(2025, 7, 26), **options)

    yield render
    for one in made:
        one.close()


def gpt_oss() -> str:
    return material("chat_templates", "openai-gpt-oss-120b.jinja").read_text()


def called(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [CALL], **fields}


ANALYSIS = "<|start|>assistant<|channel|>analysis<|message|>Ask for it.<|end|>"
COMMENTARY = '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"city": "Rome"}<|call|>'


@pytest.mark.parametrize("name", REASONING_NAMES)
def test_the_reasoning_before_a_tool_call_reaches_gpt_oss(name: str, render: Render) -> None:
    assert ANALYSIS + COMMENTARY in render(gpt_oss(), QUESTION, called(**{name: "Ask for it."}), RESULT)
    assert ANALYSIS not in render(gpt_oss(), QUESTION, called(**{name: None}), RESULT)


def test_gpt_oss_drops_the_reasoning_of_turns_that_have_ended(render: Render) -> None:
    call, final = called(reasoning="Ask for it."), {**FINAL, "reasoning": "31 is warm."}
    text = render(gpt_oss(), QUESTION, call, RESULT, final, NEXT)
    assert COMMENTARY in text
    assert "analysis<|message|>" not in text
    trained = render(gpt_oss(), QUESTION, call, RESULT, final, add_generation_prompt=False)
    assert "<|channel|>analysis<|message|>31 is warm.<|end|>" in trained
    assert ANALYSIS not in trained


def test_what_gpt_oss_refuses_is_the_requests_error(render: Render) -> None:
    with pytest.raises(ParameterError, match="Cannot pass both content and thinking"):
        render(gpt_oss(), QUESTION, called(reasoning_content="Ask for it.", content="One moment."), RESULT)


@pytest.mark.parametrize("given", REASONING_NAMES)
@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ messages[0].reasoning_content }}", "Hm."),
        ("{{ messages[0].reasoning }}", "Hm."),
        ("{{ messages[0]['thinking'] }}", "Hm."),
        ("{% if 'thinking' in messages[0] %}yes{% endif %}", "yes"),
        ("{{ messages[0].get('reasoning', 'none') }}", "Hm."),
        ("{% for m in messages %}{% set n = 'thinking' %}{{ m[n] }}{{ m.reasoning }}{% endfor %}", "Hm.Hm."),
        ("{{ messages[0] | list | join(' ') }}", "role content reasoning_content"),
    ],
)
def test_reasoning_has_the_name_that_the_template_reads(given: str, template: str, text: str, render: Render) -> None:
    assert render(template, {**FINAL, given: "Hm."}) == text


def test_a_message_without_reasoning_has_no_name_for_it(render: Render) -> None:
    template = "{% for name in ['thinking', 'reasoning', 'reasoning_content'] %}{{ name in messages[0] }} {% endfor %}"
    assert render(template, FINAL) == "False False False "
    assert render(template, {**FINAL, "thinking": None, "reasoning": None}) == "False False False "
    assert render(template, {**FINAL, "thinking": ""}) == "True True True "


def test_reasoning_that_contradicts_itself_or_is_no_text_is_refused() -> None:
    with pytest.raises(ParameterError, match="thinking: is another name of reasoning, and differs"):
        template_message({**FINAL, "reasoning": "a", "thinking": "b"}, "m")
    with pytest.raises(ParameterError, match="reasoning: must be a string, not dict"):
        template_message({**FINAL, "reasoning": {"effort": "low"}}, "m")
    assert template_message({**FINAL, "reasoning": "a", "thinking": "a"}, "m")["reasoning_content"] == "a"


NO_OBJECTS = ['{"city": "Par', "[1, 2]", "null", " ", "5", '{"a": NaN}', "9" * 5000, "[" * 100_000, "\ud7ff<|end|>"]


def wrote(arguments: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


@pytest.mark.parametrize("arguments", NO_OBJECTS)
def test_a_template_gets_arguments_that_are_no_object_as_they_were_written(arguments: str, render: Render) -> None:
    template = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments }}{% endfor %}{% endfor %}"
    assert render(template, QUESTION, wrote(arguments), RESULT) == arguments


@pytest.mark.parametrize("arguments", NO_OBJECTS)
def test_a_template_that_reads_objects_only_gets_one_with_the_text(arguments: str, render: Render) -> None:
    template = (
        "{% for m in messages %}{% for c in m.tool_calls %}{% for name, value in c.function.arguments.items() %}"
        "{{ name }}={{ value }}{% endfor %}{% endfor %}{% endfor %}"
    )
    assert render(template, QUESTION, wrote(arguments), RESULT) == f"={arguments}"
    assert render(template, QUESTION, wrote('{"a": "b"}'), RESULT) == "a=b"


@pytest.mark.few(10)
@pytest.mark.parametrize("name", GOLDEN_TEMPLATES)
def test_real_templates_take_a_call_that_was_cut_off(name: str, render: Render) -> None:
    template = material("chat_templates", name).read_text()
    call = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ro'}}
    history = [
        QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {**RESULT, "tool_call_id": "call00001"},
    ]
    whole = [
        {**message, "tool_calls": [{**call, "function": CALL["function"]}]} if "tool_calls" in message else message
        for message in history
    ]
    try:
        render(template, *whole)
    except ParameterError:
        pytest.skip("the template takes no such history at all")
    assert "Ro" in render(template, *history)


def test_arguments_that_are_neither_text_nor_object_are_refused() -> None:
    call = {"function": {"name": "f", "arguments": [1]}}
    with pytest.raises(ParameterError, match=r"x.tool_calls\[0\].function.arguments: must be a JSON object, or a text"):
        template_message({"role": "assistant", "tool_calls": [call]}, "x")


def test_a_refusal_is_a_text() -> None:
    parts = [{"type": "refusal", "refusal": "I can't."}, {"type": "text", "text": "Sorry."}]
    assert template_message({"role": "assistant", "content": parts}, "x")["content"] == "I can't.\nSorry."
    with pytest.raises(ParameterError, match=r"x.content\[0\]: must be {'type': 'refusal', 'refusal': a string}"):
        template_message({"role": "assistant", "content": [{"type": "refusal", "text": "no"}]}, "x")
