"""Tool calls and thinking, by the real openai package: taken out of the text, and rendered back into it."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.serving.bodies.structure import LARGE_BYTES
from tests.server.conftest import Served
from tests.server.conversation import CALL, CHAT, TEMPLATE, WEATHER
from tests.server.openai_error import check
from tests.text.folders import byte_level_folder, with_tokens


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_level_folder(tmp_path / "model", chat_template=TEMPLATE)


@pytest.fixture
def serve(serve):
    """With a context that holds tools, too."""

    async def make(**options: Any) -> Served:
        served: Served = await serve(**options)
        served.engine.info = served.engine.info._replace(max_model_len=1024)
        return served

    return make


async def test_a_call_is_a_call_for_the_openai_package(serve) -> None:
    served: Served = await serve()
    served.engine.reply = f"I look.\n{CALL}\n{CALL.replace('Bern', 'Basel')}"
    reply = await served.client.chat.completions.create(model="fake", messages=CHAT, tools=[WEATHER], max_tokens=240)
    message = reply.choices[0].message
    assert reply.choices[0].finish_reason == "tool_calls"
    assert message.content == "I look."
    assert [(call.type, call.function.name) for call in message.tool_calls] == [("function", "get_weather")] * 2
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == [{"city": "Bern"}, {"city": "Basel"}]
    assert len({call.id for call in message.tool_calls}) == 2
    sent = served.engine.tokenizer.decode(served.engine.submitted[0].prompt_token_ids)
    assert sent.startswith("[" + json.dumps(WEATHER) + "]")


async def test_calls_in_a_stream_join_to_the_same(serve) -> None:
    served: Served = await serve()
    served.engine.reply = f"I look.\n{CALL}"
    calls, text, reasons = [], "", []
    stream = await served.client.chat.completions.create(
        model="fake", messages=CHAT, tools=[WEATHER], max_tokens=240, stream=True
    )
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        calls += chunk.choices[0].delta.tool_calls or []
        reasons.append(chunk.choices[0].finish_reason)
    assert text == "I look."
    assert [(call.index, call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        (0, "get_weather", {"city": "Bern"})
    ]
    assert reasons[-1] == "tool_calls"


async def test_what_the_tool_said_goes_back_to_the_model(serve) -> None:
    served: Served = await serve()
    served.engine.reply = CALL
    messages: list[Any] = list(CHAT)
    reply = await served.client.chat.completions.create(
        model="fake", messages=messages, tools=[WEATHER], max_tokens=200
    )
    messages += [reply.choices[0].message, {"role": "tool", "tool_call_id": "x", "content": "21 degrees"}]
    served.engine.reply = "It is 21 degrees."
    again = await served.client.chat.completions.create(model="fake", messages=messages, tools=[WEATHER], max_tokens=20)
    assert again.choices[0].message.content == "It is 21 degrees."
    sent = served.engine.tokenizer.decode(served.engine.submitted[1].prompt_token_ids, skip_special_tokens=False)
    assert '<tool_call>{"name": "get_weather", "arguments": {"city": "Bern"}}</tool_call><|end|>' in sent
    assert sent.endswith("<|tool|>21 degrees<|end|><|assistant|>")


async def test_calls_stay_text_where_no_tools_were_offered(serve) -> None:
    served: Served = await serve()
    served.engine.reply = CALL
    for body in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        answer = await served.post("/v1/chat/completions", {"messages": CHAT, "max_tokens": 200, **body})
        assert answer.body["choices"][0]["message"]["content"] == CALL
        assert "tool_calls" not in answer.body["choices"][0]["message"]
    assert served.engine.submitted[0].prompt_token_ids == served.engine.submitted[1].prompt_token_ids


@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_a_large_body_is_answered_with_calls_where_it_offers_tools(serve, choice: str) -> None:
    served: Served = await serve()
    served.engine.reply = CALL
    body = {"messages": CHAT, "tools": [WEATHER], "tool_choice": choice, "metadata": {"a": "a" * LARGE_BYTES}}
    answer = await served.post("/v1/chat/completions", {**body, "max_tokens": 200})
    message = answer.body["choices"][0]["message"]
    assert [call["function"]["name"] for call in message.get("tool_calls", [])] == ["get_weather"] * (choice == "auto")
    assert message["content"] == (None if choice == "auto" else CALL)


async def test_one_call_where_calls_in_parallel_are_not_wanted(serve) -> None:
    served: Served = await serve()
    served.engine.reply = CALL + CALL
    reply = await served.client.chat.completions.create(
        model="fake", messages=CHAT, tools=[WEATHER], parallel_tool_calls=False, max_tokens=240
    )
    assert len(reply.choices[0].message.tool_calls) == 1


async def test_thinking_is_told_apart(serve) -> None:
    served: Served = await serve()
    served.engine.reply = "<think>\nHm.\n</think>\n\nYes."
    message = (await served.post("/v1/chat/completions", {"messages": CHAT, "max_tokens": 99})).body["choices"][0][
        "message"
    ]
    assert (message["reasoning_content"], message["reasoning"], message["content"]) == ("Hm.", "Hm.", "Yes.")
    stream = await served.client.chat.completions.create(model="fake", messages=CHAT, max_tokens=99, stream=True)
    deltas = [chunk.choices[0].delta.model_dump() async for chunk in stream]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Hm."
    assert "".join(delta["content"] or "" for delta in deltas) == "Yes."


async def test_thinking_that_the_prompt_began(serve) -> None:
    served: Served = await serve()
    served.engine.reply = "Hm.</think>Yes."
    body = {"messages": CHAT, "max_tokens": 99, "thinking": {"type": "enabled"}}
    message = (await served.post("/v1/chat/completions", body)).body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")
    body["thinking"] = {"type": "disabled"}
    message = (await served.post("/v1/chat/completions", body)).body["choices"][0]["message"]
    assert message["content"] == "Hm.</think>Yes."
    contradiction = {**body, "chat_template_kwargs": {"enable_thinking": True}}
    check(await served.post("/v1/chat/completions", contradiction), 400, "thinking", "contradicts")


async def test_parsers_can_be_switched_off(serve) -> None:
    served: Served = await serve(tool_call_parser="none", reasoning_parser="none")
    served.engine.reply = f"<think>Hm.</think>{CALL}"
    body = {"messages": CHAT, "max_tokens": 200, "tools": [WEATHER]}
    assert (await served.post("/v1/chat/completions", body)).body["choices"][0]["message"][
        "content"
    ] == served.engine.reply


async def test_tools_of_a_model_whose_form_is_not_known_are_refused(serve, folder: Path) -> None:
    byte_level_folder(folder, chat_template="{{ tools }}{{ messages }}")
    served: Served = await serve()
    answer = await served.post("/v1/chat/completions", {"messages": CHAT, "tools": [WEATHER]})
    check(answer, 400, "tools", "--tool-call-parser")


async def test_tools_of_a_template_that_takes_none_are_refused(serve, folder: Path) -> None:
    byte_level_folder(folder)
    served: Served = await serve(tool_call_parser="hermes")
    check(await served.post("/v1/chat/completions", {"messages": CHAT, "tools": [WEATHER]}), 400, "tools", "template")


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return {"type": "object", **schema}


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "retrieval"}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "a" * 65}}], "tools[0].function.name"),
        ([WEATHER, WEATHER], "tools[1].function.name"),
        (
            [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}],
            "tools[0].function.parameters",
        ),
        ([{"type": "function", "function": {"name": "f", "parameters": deep(40)}}], "tools[0].function"),
        ([{"type": "function", "function": {"name": "f", "parameters": deep(200)}}], "tools[0].function"),
        ([{"type": "function", "function": {"name": "f", "description": "x" * 70_000}}], "tools[0].function"),
        ([{"type": "function", "function": {"name": f"f{i}"}} for i in range(129)], "tools"),
        ([{"type": "function", "function": {"name": "f", "strict": "yes"}}], "tools[0].function.strict"),
        ("get_weather", "tools"),
    ],
)  # fmt: skip
async def test_a_wrong_tool_is_named(serve, tools: Any, param: str) -> None:
    served: Served = await serve()
    check(await served.post("/v1/chat/completions", {"messages": CHAT, "tools": tools}), 400, param)
    assert served.engine.submitted == []


@pytest.mark.parametrize("choice", ["always", "auto", "required", {"type": "custom"}, {"type": "allowed_tools"}])
async def test_a_tool_choice_that_is_not_known_or_has_no_tools_is_refused(serve, choice: Any) -> None:
    served: Served = await serve()
    body = {"messages": CHAT, "tool_choice": choice} | ({} if choice in ("auto", "required") else {"tools": [WEATHER]})
    answer = await served.post("/v1/chat/completions", body)
    assert answer.status == 400
    assert answer.body["error"]["param"].startswith("tool_choice")


NAMED = {"type": "function", "function": {"name": "get_weather"}}
STRICT: Any = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
CHOICES: dict[str, tuple[dict[str, Any], str | None, list[str]]] = {
    "auto": ({"tools": [WEATHER]}, None, []),
    "required": (
        {"tools": [WEATHER], "tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice",
        ["sequence", "tags_with_separator"],
    ),
    "named": ({"tools": [WEATHER], "tool_choice": NAMED}, "tool_choice", ["sequence", "tags_with_separator"]),
    "allowed": (
        {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "allowed_tools": {
            "mode": "auto", "tools": [NAMED]}}},
        "tool_choice", ["triggered_tags"],
    ),
    "strict": ({"tools": [STRICT]}, "tools[0].function.strict", ["triggered_tags"]),
    "one": ({"tools": [WEATHER], "parallel_tool_calls": False}, "parallel_tool_calls", ["triggered_tags"]),
    "a format": (
        {"tools": [WEATHER], "response_format": {"type": "json_object"}}, "response_format",
        ["or", "sequence", "tags_with_separator", "json_schema"],
    ),
    "none": ({"tools": [STRICT], "tool_choice": "none", "parallel_tool_calls": False}, None, []),
}  # fmt: skip
"""Bodies, the field for which the engine is asked for a structural tag, and what is in that."""


@pytest.mark.parametrize("name", CHOICES)
async def test_what_the_engine_is_asked_for(serve, name: str) -> None:
    served: Served = await serve()
    served.engine.reply = CALL
    fields, param, kinds = CHOICES[name]
    thinking = {"messages": CHAT, "max_tokens": 240, "thinking": {"type": "enabled"}}
    assert (await served.post("/v1/chat/completions", {**thinking, **fields})).status == 200
    constraint = served.engine.submitted[0].sampling.constraint
    if param is None:
        assert constraint is None
        return
    assert constraint is not None
    assert constraint.param == param
    assert [kind for kind in kinds if f'"type": "{kind}"' not in constraint.value] == []
    assert constraint.after  # the thought comes first
    await served.post("/v1/chat/completions", {**thinking, "tools": [WEATHER]})
    first, last = served.engine.submitted
    assert first.prompt_token_ids == last.prompt_token_ids  # whatever is asked for


@pytest.mark.parametrize("special", [True, False])
async def test_tags_that_are_control_tokens_stay_in_the_text(serve, folder: Path, special: bool) -> None:
    with_tokens(folder, "<tool_call>", "</tool_call>", special=special)
    served: Served = await serve()
    await served.post("/v1/chat/completions", {"messages": CHAT, "tools": [WEATHER], "tool_choice": "required"})
    await served.post("/v1/chat/completions", {"messages": CHAT, "tools": [WEATHER]})
    assert [request.sampling.skip_special_tokens for request in served.engine.submitted] == [not special] * 2


async def test_none_leaves_the_format_alone(serve) -> None:
    served: Served = await serve()
    body = {"messages": CHAT, "tools": [STRICT], "tool_choice": "none", "response_format": {"type": "json_object"}}
    await served.post("/v1/chat/completions", body)
    constraint = served.engine.submitted[0].sampling.constraint
    assert constraint is not None
    assert constraint.kind == "json_object"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_ends_as_openai_says(serve, stream: bool) -> None:
    """`tool_calls` where the model chose the function, `stop` where the request did."""
    served: Served = await serve()
    served.engine.reply = CALL
    for choice, reason in ((NAMED, "stop"), ("required", "tool_calls"), ("auto", "tool_calls")):
        asked = served.client.chat.completions.create(
            model="fake", messages=CHAT, tools=[WEATHER], tool_choice=choice, max_tokens=240, stream=stream
        )
        told = [each async for each in await asked] if stream else [await asked]
        assert told[-1].choices[0].finish_reason == reason


@pytest.mark.parametrize("options", [{"tool_choice": NAMED}, {"parallel_tool_calls": False}, {}], ids=str)
async def test_openais_helper_sees_that_a_call_is_done(serve, options: dict[str, Any]) -> None:
    served: Served = await serve()
    served.engine.reply = CALL
    served.engine.steps_per_list = 1000  # the call and its end come together
    options = {"tool_choice": "required", "max_tokens": 240, **options}
    stream = served.client.chat.completions.stream(model="fake", messages=CHAT, tools=[WEATHER], **options)
    async with stream as events:
        done = [event async for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [json.loads(event.arguments) for event in done] == [{"city": "Bern"}]


async def test_calls_that_cannot_be_forced_are_refused(serve, folder: Path) -> None:
    served: Served = await serve(tool_call_parser="none")
    body = {"messages": CHAT, "tools": [WEATHER]}
    for choice in ("required", NAMED):
        answer = await served.post("/v1/chat/completions", {**body, "tool_choice": choice})
        check(answer, 400, "tool_choice", "not supported yet where calls are not taken out of answers")
    assert served.engine.submitted == []


async def test_a_continued_answer_is_not_constrained(serve) -> None:
    served: Served = await serve()
    body = {"messages": [*CHAT, {"role": "assistant", "content": "I"}], "continue_final_message": True,
            "add_generation_prompt": False}  # fmt: skip
    for fields, param in (
        ({"tools": [WEATHER], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [STRICT]}, "tools[0]"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ):
        check(await served.post("/v1/chat/completions", {**body, **fields}), 400, param, "goes on with the last")
    assert served.engine.submitted == []


TAG = {"structures": [{"begin": "<n>", "schema": {"type": "integer"}, "end": "</n>"}], "triggers": ["<n"]}
INTEGER_TAG = {"begin": "<n>", "content": {"type": "json_schema", "json_schema": {"type": "integer"}}, "end": "</n>"}
FORMAT = {"format": {"type": "triggered_tags", "triggers": ["<n"], "tags": [INTEGER_TAG]}}


async def test_structural_tags_of_each_form(serve) -> None:
    served: Served = await serve()
    for value in (TAG, FORMAT):
        for fields in (
            {"response_format": {"type": "structural_tag", **value}},
            {"structured_outputs": {"structural_tag": json.dumps({"type": "structural_tag", **value})}},
            {"structured_outputs": {"structural_tag": value}},
        ):
            assert (await served.post("/v1/chat/completions", {"messages": CHAT, **fields})).status == 200
    await served.post("/v1/completions", {"prompt": "a", "response_format": {"type": "structural_tag", **TAG}})
    asked = [request.sampling.constraint for request in served.engine.submitted]
    assert len(asked) == 7
    found = [_without_params(json.loads(constraint.value)) for constraint in asked if constraint is not None]
    assert found == [found[0]] * 7


def _without_params(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_params(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_params(each) for key, each in value.items() if key != "param"}


LONG_CALL = {"name": "write_file", "arguments": {"text": 'Lorem ipsum "dolor" ' * 12, "list": [1, {"a": None}]}}


@pytest.mark.parametrize("parallel", [True, False])
async def test_a_long_call_streams_name_first_and_joins_to_the_whole_one(serve, parallel: bool) -> None:
    served: Served = await serve()
    served.engine.reply = f"I write.\n<tool_call>\n{json.dumps(LONG_CALL)}\n</tool_call>\n{CALL}"
    options: dict[str, Any] = {"model": "fake", "messages": CHAT, "tools": [WEATHER], "max_tokens": 800}
    whole = await served.client.chat.completions.create(**options, parallel_tool_calls=parallel)
    stream = await served.client.chat.completions.create(**options, parallel_tool_calls=parallel, stream=True)
    pieces = [call async for chunk in stream for call in chunk.choices[0].delta.tool_calls or []]
    assert len(pieces) > 20
    first = pieces[0]
    assert (first.index, first.type, first.function.name, first.function.arguments) == (0, "function", "write_file", "")
    assert all(not call.id and not call.function.name for call in pieces[1:] if call.index == 0)
    told = {index: [call for call in pieces if call.index == index] for index in range(1 + parallel)}
    streamed = [(calls[0].function.name, "".join(call.function.arguments for call in calls)) for calls in told.values()]
    calls = whole.choices[0].message.tool_calls
    assert streamed == [(call.function.name, call.function.arguments) for call in calls]
    assert json.loads(streamed[0][1]) == LONG_CALL["arguments"]
    assert whole.choices[0].message.content == "I write."
    assert len({call.id for call in calls}) == 1 + parallel


_ARGUMENTS = {
    "city": {"type": "string"},
    "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "by": {"type": "array"},
}
TRIP = {"type": "function", "function": {"name": "trip", "parameters": {"type": "object", "properties": _ARGUMENTS}}}
TRIP_CALL = (
    "<tool_call>\n<function=trip>\n<parameter=city>\n42\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    '<parameter=by>\n["train", "</parameter>"]\n</parameter>\n</function>\n</tool_call>'
)


@pytest.mark.parametrize("size", [0, LARGE_BYTES])
@pytest.mark.parametrize("stream", [False, True])
async def test_arguments_have_the_types_of_their_schemas(serve, size: int, stream: bool) -> None:
    served: Served = await serve(tool_call_parser="qwen3_coder")
    served.engine.reply = f"I look.\n{TRIP_CALL}"
    fields: dict[str, Any] = {"model": "fake", "messages": CHAT, "tools": [TRIP], "max_tokens": 300, "user": "x" * size}
    if stream:
        chunks = [chunk async for chunk in await served.client.chat.completions.create(**fields, stream=True)]
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    else:
        calls = (await served.client.chat.completions.create(**fields)).choices[0].message.tool_calls
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("trip", {"city": "42", "days": 3, "by": ["train", "</parameter>"]})
    ]
