"""The chat template: against what training feeds, against transformers' sandbox, and with whatever clients send."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from demo_data import Conversation, Message, conversations
from demo_data.tools import calls_in
from demo_training.template import CHAT_TEMPLATE, IM_END, pieces

from jaxinfer.errors import ParameterError
from jaxinfer.text.template.chat_template import ChatTemplate
from jaxinfer.text.template.template_process import TemplateLimits

USER = {"role": "user", "content": "What is 3 plus 4?"}
WEATHER = {"name": "get_weather", "description": "Get the weather", "parameters": {
    "type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "A city"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    }}}  # fmt: skip
CALL = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}


@pytest.fixture(scope="module")
def ours() -> Iterator[ChatTemplate]:
    template = ChatTemplate({"default": CHAT_TEMPLATE}, {}, TemplateLimits())
    yield template
    template.close()


def openai(message: Message) -> dict[str, Any]:
    """A message as clients send it, calls in their own field."""
    calls = calls_in(message.content) if "<tool_call>" in message.content else None
    if not calls:
        return {"role": message.role, "content": message.content, "reasoning_content": message.thought}
    listed = [{"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    return {"role": message.role, "content": "", "tool_calls": listed}


def messages_of(conversation: Conversation) -> list[dict[str, Any]]:
    system = [{"role": "system", "content": conversation.system}] if conversation.system else []
    return system + [openai(message) for message in conversation.messages]


def prompt_of(template: ChatTemplate, messages: list[dict[str, Any]], tools: Any = None, **kwargs: Any) -> str:
    return template.render(messages, tools=tools, template_kwargs=kwargs)


def test_it_renders_what_was_trained(ours: ChatTemplate):
    for conversation in islice(conversations(8), 300):
        trained = "".join(text for text, _ in pieces(conversation))
        last = conversation.messages[-1]
        thought = f"<think>\n{last.thought}\n</think>\n\n" if last.thought else ""
        rendered = prompt_of(ours, messages_of(conversation)[:-1], list(conversation.tools) or None)
        assert rendered + thought + last.content + IM_END + "\n" == trained


def test_tools_take_a_line_each(ours: ChatTemplate):
    text = prompt_of(ours, [USER], [{"type": "function", "function": WEATHER}])
    line = "get_weather(city: string, unit?: celsius|fahrenheit): Get the weather"
    system = f"<|im_start|>system\n# Tools\n{line}<|im_end|>\n"
    assert text == f"{system}<|im_start|>user\n{USER['content']}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("content", "kwargs", "shown"),
    [
        ("Hi", {}, "Hi"),
        ("Hi", {"enable_thinking": True}, "Hi /think"),
        ("Hi /think", {"enable_thinking": True}, "Hi /think"),
        ("Hi /no_think", {"enable_thinking": True}, "Hi /no_think"),
        ("Hi", {"enable_thinking": False}, "Hi /no_think"),
        ("Hi /think", {"enable_thinking": False}, "Hi /no_think"),
        ("/think Hi", {"enable_thinking": False}, "Hi /no_think"),
        ("Hi /no_think", {"enable_thinking": False}, "Hi /no_think"),
    ],
)
def test_switches_of_thinking(ours: ChatTemplate, content: str, kwargs: dict[str, bool], shown: str):
    earlier = [{"role": "user", "content": "Bye"}, {"role": "assistant", "content": "Bye."}]
    text = prompt_of(ours, [*earlier, {"role": "user", "content": content}], **kwargs)
    assert text.endswith(f"<|im_start|>user\n{shown}<|im_end|>\n<|im_start|>assistant\n")
    assert "user\nBye<|im_end|>" in text


def test_past_thinking_is_not_shown(ours: ChatTemplate):
    said = [
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSeven."},
        {"role": "assistant", "content": "Seven.", "reasoning_content": "hm"},
    ]
    for message in said:
        text = prompt_of(ours, [USER, message, USER])
        assert "hm" not in text
        assert "<|im_start|>assistant\nSeven.<|im_end|>\n" in text


def test_calls_and_results(ours: ChatTemplate):
    as_text = {**CALL, "function": {"name": "get_weather", "arguments": json.dumps(CALL["function"]["arguments"])}}
    results = [{"role": "tool", "content": "3 degrees"}, {"role": "tool", "content": "4 degrees"}]
    texts = {
        prompt_of(ours, [USER, {"role": "assistant", "content": None, "tool_calls": [call, call]}, *results])
        for call in (CALL, as_text)
    }
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    response = "<tool_response>\n{} degrees\n</tool_response>"
    assert texts == {
        f"<|im_start|>user\n{USER['content']}<|im_end|>\n<|im_start|>assistant\n{call}\n{call}<|im_end|>\n"
        f"<|im_start|>user\n{response.format(3)}\n{response.format(4)}<|im_end|>\n<|im_start|>assistant\n"
    }


STRANGE_TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "bare"}},
    {"name": "flat", "parameters": {"properties": {"x": {}}}},
    {"type": "function", "function": {"name": "none", "description": None, "parameters": None}},
    {"type": "function", "function": {"name": "odd", "description": "two\nlines",
        "parameters": {"properties": [], "required": 3}}},
    {"type": "function", "function": {"name": "rich", "parameters": {
        "type": "object", "required": ["keys"], "properties": {
        "keys": {"type": ["string", "null"]}, "items": {"type": "array", "items": {"$ref": "#/x"}},
        "any": {"anyOf": []},
        "yes": True, "const": {"const": 3}, "enum": {"enum": [1, None, "a"]}, "number": {"type": 3}}}}},
]  # fmt: skip


def test_any_schema_can_be_shown(ours: ChatTemplate):
    text = prompt_of(ours, [USER], STRANGE_TOOLS)
    assert text.split("<|im_end|>")[0].splitlines()[2:] == [
        "bare()",
        "flat(x?: any)",
        "none()",
        "odd(): two lines",
        "rich(keys: string|null, items?: array, any?: any, yes?: any, const?: any, enum?: 1|None|a, number?: any)",
    ]


def test_a_role_that_was_not_trained_is_refused(ours: ChatTemplate):
    with pytest.raises(ParameterError, match="not critic"):
        prompt_of(ours, [{"role": "critic", "content": "x"}])


@pytest.mark.parity
def test_transformers_renders_the_same(ours: ChatTemplate):
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models

    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), chat_template=CHAT_TEMPLATE)
    cases: list[tuple[list[dict[str, Any]], Any]] = [
        (messages_of(c)[:-1], list(c.tools) or None) for c in islice(conversations(9), 200)
    ]
    cases += [
        ([USER], STRANGE_TOOLS),
        ([USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, USER], None),
    ]
    cases += [([{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}], None)]
    for messages, tools in cases:
        for kwargs in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
            expected = theirs.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=True, **kwargs
            )
            assert prompt_of(ours, messages, tools, **kwargs) == expected
