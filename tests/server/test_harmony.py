"""Answers in the harmony format, whose tags are special tokens: by the real openai package, whole and streamed."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Served
from tests.server.conversation import CHAT, WEATHER
from tests.text.folders import byte_level_folder, with_tokens

TAGS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|return|>", "<|call|>")
TEMPLATE = (
    "{% for tool in tools or [] %}type {{ tool.function.name }} {% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if m.tool_calls %}<|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json"
    "<|message|>{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
THINKING = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
ANSWER = THINKING + "<|channel|>final<|message|>Yes, I do."
CALLING = THINKING + '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Bern"}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_tokens(byte_level_folder(tmp_path / "model", chat_template=TEMPLATE), *TAGS, special=True)


@pytest.fixture
def serve(serve):
    """With a model that ends its answers as gpt-oss does."""

    async def make(reply: str, end: str = "<|return|>", **options: Any) -> Served:
        served: Served = await serve(**options)
        served.engine.info = served.engine.info._replace(max_model_len=1024)
        served.engine.reply, served.engine.stop_token = reply, served.engine.tokenizer.token_to_id(end)
        return served

    return make


async def chat(served: Served, **fields: Any) -> dict[str, Any]:
    answer = await served.post("/v1/chat/completions", {"messages": CHAT, "max_tokens": 200, **fields})
    assert answer.status == 200, answer.body
    return answer.body


@pytest.mark.parametrize("asked", [{}, {"skip_special_tokens": True}, {"skip_special_tokens": False}])
async def test_reasoning_and_content(serve, asked: dict[str, Any]) -> None:
    served: Served = await serve(ANSWER)
    body = await chat(served, **asked)
    message = body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes, I do.")
    assert body["choices"][0]["finish_reason"] == "stop"
    counted = body["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert counted == len(served.engine.tokenizer.encode("Hm.", add_special_tokens=False))


async def test_a_stream_joins_to_the_same(serve) -> None:
    served: Served = await serve(ANSWER)
    stream = await served.client.chat.completions.create(model="fake", messages=CHAT, max_tokens=99, stream=True)
    deltas = [chunk.choices[0].delta.model_dump() async for chunk in stream]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Hm."
    assert "".join(delta["content"] or "" for delta in deltas) == "Yes, I do."


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_is_a_call_for_the_openai_package(serve, stream: bool) -> None:
    served: Served = await serve(CALLING, end="<|call|>")
    asked: dict[str, Any] = {"model": "fake", "messages": CHAT, "tools": [WEATHER], "max_tokens": 200}
    if stream:
        chunks = await served.client.chat.completions.create(**asked, stream=True)
        choices = [chunk.choices[0] async for chunk in chunks]
        calls = [call for choice in choices for call in choice.delta.tool_calls or []]
        content, reason = "".join(choice.delta.content or "" for choice in choices), choices[-1].finish_reason
    else:
        (choice,) = (await served.client.chat.completions.create(**asked)).choices
        calls, content, reason = choice.message.tool_calls, choice.message.content or "", choice.finish_reason
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("get_weather", {"city": "Bern"})
    ]
    assert (content, reason) == ("", "tool_calls")


async def test_a_call_goes_back_to_the_model_without_the_reasonings_tags(serve) -> None:
    served: Served = await serve(CALLING, end="<|call|>")
    message = (await chat(served, tools=[WEATHER]))["choices"][0]["message"]
    messages = [*CHAT, message, {"role": "tool", "tool_call_id": "x", "content": "21"}]
    await chat(served, messages=messages, tools=[WEATHER])
    sent = served.engine.tokenizer.decode(served.engine.submitted[1].prompt_token_ids, skip_special_tokens=False)
    called = '<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Bern"}<|call|>'
    assert called + "<|start|>tool<|message|>21<|end|><|start|>assistant" in sent


async def test_a_call_stays_text_where_no_tools_were_offered(serve) -> None:
    served: Served = await serve(CALLING, end="<|call|>")
    (choice,) = (await chat(served))["choices"]
    assert choice["message"]["content"] == CALLING.removeprefix(THINKING.removesuffix("<|start|>assistant"))
    assert choice["finish_reason"] == "stop"


async def test_an_answer_that_continues_a_message_is_content(serve) -> None:
    served: Served = await serve(" I do.")
    messages = [*CHAT, {"role": "assistant", "content": "Yes,"}]
    asked = {"messages": messages, "add_generation_prompt": False, "continue_final_message": True, "echo": True}
    assert (await chat(served, **asked))["choices"][0]["message"]["content"] == "Yes, I do."


async def test_the_tags_are_left_out_where_nothing_is_taken_apart(serve) -> None:
    served: Served = await serve(ANSWER, tool_call_parser="none", reasoning_parser="none")
    message = (await chat(served))["choices"][0]["message"]
    assert message["content"] == "analysisHm.assistantfinalYes, I do."
    answer = await served.post("/v1/completions", {"prompt": "a", "max_tokens": 99})
    assert answer.body["choices"][0]["text"] == "analysisHm.assistantfinalYes, I do."


async def test_reasoning_stays_in_the_content_where_it_is_not_looked_for(serve) -> None:
    served: Served = await serve(ANSWER, reasoning_parser="none")
    message = (await chat(served))["choices"][0]["message"]
    assert message["content"] == THINKING.removesuffix("<|start|>assistant") + "\nYes, I do."


@pytest.mark.parametrize("stream", [False, True])
async def test_items_of_a_response(serve, stream: bool) -> None:
    preamble = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    served: Served = await serve(THINKING + preamble + CALLING.removeprefix(THINKING), "<|call|>")
    tool = {"type": "function", **WEATHER["function"]}
    options: dict[str, Any] = {"model": "fake", "input": "hi", "tools": [tool]}
    if stream:
        async with served.client.responses.stream(**options) as events:
            response = await events.get_final_response()
    else:
        response = await served.client.responses.create(**options)
    thought, message, call = response.output
    assert (thought.content[0].text, message.content[0].text) == ("Hm.", "I look.")
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Bern"})
    assert response.usage.output_tokens_details.reasoning_tokens > 0
