"""The demo model behind `jaxinfer serve`, by the openai package: tool calls, their answers, JSON, thinking."""

import json
from typing import Any

import openai
import pytest

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
EMAIL: Any = {
    "type": "function",
    "function": {
        "name": "send_email",
        "description": "Send an email",
        "parameters": {
            "type": "object",
            "properties": {"to": {"type": "string"}, "subject": {"type": "string"}},
            "required": ["to", "subject"],
        },
    },
}


def ask(client: openai.OpenAI, messages: list[Any], **options: Any) -> Any:
    return client.chat.completions.create(model="demo", messages=messages, temperature=0, **options).choices[0]


@pytest.mark.parametrize("tools", [[WEATHER], [EMAIL, WEATHER]])
@pytest.mark.parametrize("city", ["Paris", "Rome"])
def test_a_tool_is_called_and_its_answer_told(client: openai.OpenAI, tools: list[Any], city: str) -> None:
    messages: list[Any] = [{"role": "user", "content": f"What is the weather in {city}?"}]
    called = ask(client, messages, tools=tools)
    assert called.finish_reason == "tool_calls"
    (call,) = called.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": city})
    said = {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21, "sky": "sunny"}'}
    told = ask(client, [*messages, called.message, said], tools=tools)
    assert told.finish_reason == "stop"
    assert "21" in told.message.content


def test_a_call_in_a_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "What is the weather in Paris?"}], tools=[WEATHER],
        temperature=0, stream=True,
    )  # fmt: skip
    chunks = [chunk.choices[0] for chunk in stream]
    (call,) = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert call.function is not None
    assert (call.function.name, json.loads(call.function.arguments or "")) == ("get_weather", {"city": "Paris"})
    assert chunks[-1].finish_reason == "tool_calls"


@pytest.mark.parametrize("fields", [{"name": "Anna", "age": 7}, {"name": "Tom", "age": 31, "city": "Rome"}])
def test_json_on_request(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    listed = ", ".join(f"{name} {value}" for name, value in fields.items())
    said = ask(client, [{"role": "user", "content": f"Write a JSON object with {listed}."}])
    assert json.loads(said.message.content) == fields


def test_thinking_is_told_apart(client: openai.OpenAI) -> None:
    message = ask(
        client, [{"role": "user", "content": "What is 27 plus 15?"}],
        extra_body={"chat_template_kwargs": {"enable_thinking": True}},
    ).message  # fmt: skip
    assert message.reasoning_content
    assert "42" in message.content
    assert "<think>" not in message.content
    plain = ask(client, [{"role": "user", "content": "What is 27 plus 15?"}]).message
    assert plain.content == "27 + 15 = 42."
    assert plain.reasoning_content is None
