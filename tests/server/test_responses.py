"""/v1/responses by the real openai package, and by what OpenAI's schemas call valid."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.serving.bodies.structure import LARGE_BYTES
from tests.server import openai_schema
from tests.server.conftest import Served
from tests.server.conversation import CALL, TEMPLATE
from tests.server.conversation import WEATHER_ITEM as WEATHER
from tests.server.openai_error import check
from tests.text.folders import byte_level_folder, with_tokens

PATH = "/v1/responses"
PATCH: dict[str, Any] = {
    "type": "custom", "name": "apply_patch", "description": "Change files",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_tokens(byte_level_folder(tmp_path / "model", chat_template=TEMPLATE), "<think>", "</think>")


@pytest.fixture
def serve(serve):
    """Serve a model whose context holds tools, too."""

    async def make(**options: Any) -> Served:
        served: Served = await serve(**options)
        served.engine.info = served.engine.info._replace(max_model_len=2048)
        return served

    return make


def prompt(served: Served, number: int = -1) -> str:
    """The text that the model was sent."""
    ids = served.engine.submitted[number].prompt_token_ids
    return served.engine.tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.smoke
async def test_a_text_is_answered(serve) -> None:
    served: Served = await serve()
    response = await served.client.responses.create(model="fake", input="hi", instructions="Be short.")
    assert response.id.startswith("resp_")
    assert (response.status, response.output_text) == ("completed", "hello world")
    assert prompt(served) == "<|system|>Be short.<|end|><|user|>hi<|end|><|assistant|>"
    usage = response.usage
    assert (usage.input_tokens, usage.total_tokens) == (
        len(served.engine.submitted[0].prompt_token_ids),
        usage.input_tokens + usage.output_tokens,
    )


async def test_what_was_asked_for_is_repeated(serve) -> None:
    served: Served = await serve()
    asked: dict[str, Any] = {
        "instructions": "Be short.", "max_output_tokens": 50, "max_tool_calls": 3, "metadata": {"a": "b"},
        "parallel_tool_calls": False, "prompt_cache_key": "key", "reasoning": {"effort": "low", "summary": "auto"},
        "safety_identifier": "me", "store": False, "temperature": 0.5, "top_p": 0.9, "tools": [WEATHER, PATCH],
        "text": {"format": {"type": "text"}, "verbosity": "low"}, "tool_choice": "auto", "truncation": "disabled",
        "user": "me", "top_logprobs": 1,
    }  # fmt: skip
    body = {"model": "fake", "input": "hi", "include": ["message.output_text.logprobs"], **asked}
    answer = await served.post(PATH, body)
    openai_schema.check("Response", answer.body)
    assert {name: answer.body[name] for name in asked} == asked


async def test_thoughts_are_items_and_their_tokens_are_counted(serve) -> None:
    served: Served = await serve()
    served.engine.reply = "<think>hm</think>\n\nhello"
    response = await served.client.responses.create(model="fake", input="hi", reasoning={"effort": "low"})
    thought, message = response.output
    assert (thought.type, thought.summary, thought.content[0].text) == ("reasoning", [], "hm")
    assert message.content[0].text == "hello"
    assert response.usage.output_tokens_details.reasoning_tokens == 2


async def test_a_tool_loop(serve) -> None:
    served: Served = await serve()
    served.engine.reply = f"I look.\n{CALL}"
    options: dict[str, Any] = {"model": "fake", "tools": [WEATHER], "max_output_tokens": 240}
    said: list[Any] = [{"role": "user", "content": "Weather?"}]
    response = await served.client.responses.create(input=said, **options)
    _message, call = response.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Bern"})
    served.engine.reply = "It is 21 degrees."
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}
    await served.client.responses.create(input=[*said, *response.output, result], **options)
    by_items = prompt(served)
    assert by_items.endswith(
        '<|assistant|>I look.<tool_call>{"name": "get_weather", "arguments": {"city": "Bern"}}</tool_call><|end|>'
        "<|tool|>21 degrees<|end|><|assistant|>"
    )
    await served.client.responses.create(input=[result], previous_response_id=response.id, **options)
    assert prompt(served) == by_items


async def test_prompts_are_those_of_chats(serve) -> None:
    served: Served = await serve()
    chat_tool = {"type": "function", "function": {k: v for k, v in WEATHER.items() if k not in ("type", "strict")}}
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Bern"}'}}
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "c", "content": "x\ny"},
        {"role": "tool", "tool_call_id": "c", "content": "z"},
        {"role": "assistant", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "c"},
    ]
    called = {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": '{"city": "Bern"}'}
    text = {"type": "input_text", "text": "x"}
    items = [
        {"role": "user", "content": [{**text, "text": "a"}, {**text, "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "id": "m", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        called, called,
        {"type": "function_call_output", "call_id": "c", "output": [text, {**text, "text": "y"}]},
        {"type": "function_call_output", "call_id": "c", "output": "z"},
        {"role": "assistant", "content": "one"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "two"}]},
        {"type": "message", "role": "user", "content": "c"},
    ]  # fmt: skip
    await served.post("/v1/chat/completions", {"messages": messages, "tools": [chat_tool], "reasoning_effort": "low"})
    body = {"input": items, "instructions": "Be short.", "tools": [WEATHER], "reasoning": {"effort": "low"}}
    answer = await served.post(PATH, body)
    assert answer.status == 200, answer.body
    assert prompt(served, 0) == prompt(served, 1)
    again = [{"role": "developer", "content": "Be short."}, *items]
    await served.post(PATH, {**body, "input": again, "instructions": None})
    assert prompt(served) == prompt(served, 0)


async def test_system_messages_at_the_beginning_are_one(serve) -> None:
    served: Served = await serve()
    items = [
        {"role": "developer", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "system", "content": "d"},
    ]
    await served.post(PATH, {"input": items, "instructions": "a"})
    assert prompt(served).startswith("<|system|>a\n\nb<|end|><|user|>c<|end|><|system|>d<|end|>")


async def test_a_custom_tool_is_a_function_of_one_text(serve) -> None:
    served: Served = await serve()
    text = '*** "Begin" é\n'
    written = {"name": "apply_patch", "arguments": {"input": text}}
    served.engine.reply = f"<tool_call>\n{json.dumps(written)}\n</tool_call>"
    response = await served.client.responses.create(model="fake", input="hi", tools=[PATCH])
    (call,) = response.output
    assert (call.type, call.name, call.input) == ("custom_tool_call", "apply_patch", text)
    assert "start: /.+/" in prompt(served)
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}
    await served.client.responses.create(model="fake", input=[result], previous_response_id=response.id, tools=[PATCH])
    assert f'"arguments": {json.dumps({"input": text})}' in json.dumps(json.loads(_call_in(prompt(served))))
    assert prompt(served).endswith("<|tool|>done<|end|><|assistant|>")


def _call_in(text: str) -> str:
    return text.partition("<tool_call>")[2].partition("</tool_call>")[0]


async def test_tools_of_a_namespace_have_its_name_before_theirs(serve) -> None:
    served: Served = await serve()
    tools = [{"type": "namespace", "name": "files", "description": "Files", "tools": [{**WEATHER, "name": "read"}]}]
    served.engine.reply = '<tool_call>\n{"name": "files.read", "arguments": {"city": "Bern"}}\n</tool_call>'
    answer = await served.post(PATH, {"input": "hi", "tools": tools})
    openai_schema.check("Response", answer.body)
    (call,) = answer.body["output"]
    assert (call["namespace"], call["name"]) == ("files", "read")
    assert '"name": "files.read"' in prompt(served)
    again = {"input": [{"role": "user", "content": "hi"}, call], "tools": tools}
    await served.post(PATH, again)
    assert '{"name": "files.read", "arguments": {"city": "Bern"}}' in prompt(served)
    chosen = {"type": "function", "name": "read", "namespace": "files"}
    answer = await served.post(PATH, {**again, "tool_choice": chosen})
    assert answer.status == 200, answer.body
    assert served.engine.submitted[-1].sampling.constraint is not None


async def test_hosted_tools_are_left_out(serve) -> None:
    served: Served = await serve()
    tools = [{"type": "web_search", "search_context_size": "low"}, WEATHER, {"type": "mcp", "server_label": "x"}]
    answer = await served.post(PATH, {"input": "hi", "tools": tools})
    assert answer.headers["X-Ignored-Fields"] == "tools.web_search, tools.mcp"
    assert [tool["type"] for tool in answer.body["tools"]] == ["function"]
    only = await served.post(PATH, {"input": "hi", "tools": tools[:1], "tool_choice": "auto"})
    assert only.status == 200
    strict: Served = await serve(unknown_fields="refuse")
    check(await strict.post(PATH, {"input": "hi", "tools": tools}), 400, "tools[0]", "web_search")


@pytest.mark.parametrize(
    ("choice", "constrained"),
    [
        ("auto", False),
        ("none", False),
        ("required", True),
        ({"type": "function", "name": "get_weather"}, True),
        ({"type": "custom", "name": "apply_patch"}, True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_weather"}]}, True),
    ],
)
async def test_the_choice_of_a_tool(serve, choice: Any, constrained: bool) -> None:
    served: Served = await serve()
    answer = await served.post(PATH, {"input": "hi", "tools": [WEATHER, PATCH], "tool_choice": choice})
    assert answer.status == 200, answer.body
    openai_schema.check("Response", answer.body)
    assert (served.engine.submitted[0].sampling.constraint is not None) == constrained
    assert answer.body["tool_choice"] == choice


async def test_formats_constrain_the_text(serve) -> None:
    served: Served = await serve()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "a", "schema": schema, "strict": True}
    for text_format, kind in ((form, "json_schema"), ({"type": "json_object"}, "json_object")):
        await served.post(PATH, {"input": "hi", "text": {"format": text_format}})
        constraint = served.engine.submitted[-1].sampling.constraint
        assert constraint is not None
        assert constraint.kind == kind


async def test_more_tokens_than_the_context_leaves_are_cut(serve) -> None:
    served: Served = await serve()
    response = await served.client.responses.create(model="fake", input="hi", max_output_tokens=10**6)
    submitted = served.engine.submitted[0]
    assert submitted.sampling.max_tokens == 2048 - len(submitted.prompt_token_ids)
    assert response.max_output_tokens == 10**6
    served.engine.reply = "hello world " * 10
    cut = await served.client.responses.create(model="fake", input="hi", max_output_tokens=4)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert cut.output[0].status == "incomplete"


async def test_an_answer_of_nothing_is_an_empty_message(serve) -> None:
    served: Served = await serve()
    served.engine.reply = ""
    response = await served.client.responses.create(model="fake", input="hi")
    assert (response.status, response.output_text, len(response.output)) == ("completed", "", 1)


async def test_a_large_body_asks_the_engine_for_the_same(serve) -> None:
    served: Served = await serve()
    served.engine.reply = CALL
    body = {
        "input": [{"role": "user", "content": "hi"}, {"role": "user", "content": "there"}], "instructions": "Be short.",
        "tools": [WEATHER, PATCH, {"type": "web_search"}], "max_output_tokens": 10**6, "temperature": 0.5,
        "text": {"format": {"type": "json_object"}}, "reasoning": {"effort": "none"}, "metadata": {"a": "b"},
    }  # fmt: skip
    small = await served.post(PATH, {**body, "padding": "x"})
    large = await served.post(PATH, {**body, "padding": "x" * LARGE_BYTES})
    one, other = served.engine.submitted
    assert replace(one, request_id="") == replace(other, request_id="")
    assert large.headers["X-Ignored-Fields"] == small.headers["X-Ignored-Fields"] == "padding, tools.web_search"
    own = ("id", "created_at", "completed_at", "output")
    assert {k: v for k, v in small.body.items() if k not in own} == {
        k: v for k, v in large.body.items() if k not in own
    }
    assert [item["type"] for item in large.body["output"]] == ["function_call"]
    wrong = {**body, "padding": "x" * LARGE_BYTES, "tools": [WEATHER, {"type": "custom", "name": "a b"}]}
    check(await served.post(PATH, wrong), 400, "tools[1].name", "letters")


async def test_the_packages_stream_helper(serve) -> None:
    served: Served = await serve()
    served.engine.reply = f"<think>hm</think>\n\nI look.\n{CALL}"
    async with served.client.responses.stream(model="fake", input="hi", tools=[WEATHER]) as stream:
        kinds = [event.type async for event in stream]
        response = await stream.get_final_response()
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert kinds[-1] == "response.completed"
    assert "[DONE]" not in kinds
