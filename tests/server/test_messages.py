"""Anthropic's /v1/messages and /v1/messages/count_tokens: what a request becomes, and what comes back."""

from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Served
from tests.server.conversation import CALL, TEMPLATE
from tests.server.messages_server import (
    COUNT,
    HI,
    MESSAGES,
    PADDING,
    WEATHER,
    ask,
    check_error,
    prompt,
    stream,
    with_context,
)
from tests.text.folders import byte_level_folder, with_tokens

THINK_TOKENS = ("<think>", "</think>")
USE = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Bern"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "21"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_level_folder(tmp_path / "model", chat_template=TEMPLATE)


@pytest.fixture
def serve(serve):
    async def make(**options: Any) -> Served:
        return with_context(await serve(**options))

    return make


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said, "cache_control": {"type": "ephemeral"}}


async def test_a_text_is_one_block(serve) -> None:
    served: Served = await serve()
    served.engine.cached_tokens = 16
    reply = await ask(served, max_tokens=20)
    assert reply["id"].startswith("msg_")
    assert reply["content"] == [{"type": "text", "text": "hello world"}]
    assert (reply["type"], reply["role"], reply["model"]) == ("message", "assistant", "fake")
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("end_turn", None)
    whole = len(served.engine.submitted[0].prompt_token_ids)
    tokens = len(served.engine.tokenizer.encode("hello world", add_special_tokens=False)) + 1
    assert reply["usage"] == {
        "input_tokens": whole - 16, "output_tokens": tokens, "cache_read_input_tokens": 16,
        "cache_creation_input_tokens": 0,
    }  # fmt: skip


async def test_a_message_starts_with_the_tokens_that_were_cached(serve) -> None:
    served: Served = await serve()
    served.engine.cached_tokens = 16
    usage = (await stream(served))[0]["message"]["usage"]
    whole = len(served.engine.submitted[0].prompt_token_ids)
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (whole - 16, 16)


CONVERSATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "a system prompt": ({"system": "Be short."}, "<|system|>Be short.<|end|><|user|>hi<|end|><|assistant|>"),
    "system blocks": (
        {"system": [text("Be short."), text("Be kind.")]},
        "<|system|>Be short.\nBe kind.<|end|><|user|>hi<|end|><|assistant|>",
    ),
    "what Claude Code says of its bill": (
        {"system": [text("x-anthropic-billing-header: cc_version=2; cch=1a2b;"), text("Be short.")]},
        "<|system|>Be short.<|end|><|user|>hi<|end|><|assistant|>",
    ),
    "that in a text": (
        {"system": "x-anthropic-billing-header: cch=1a2b;\nBe short."},
        "<|system|>Be short.<|end|><|user|>hi<|end|><|assistant|>",
    ),
    "no system prompt": ({"system": []}, "<|user|>hi<|end|><|assistant|>"),
    "blocks of a user": (
        {"messages": [{"role": "user", "content": [text("a"), text("b")]}]}, "<|user|>a\nb<|end|><|assistant|>",
    ),
    "the system in between": (
        {"messages": [*HI, {"role": "system", "content": [text("Stop.")]}, *HI]},
        "<|user|>hi<|end|><|system|>Stop.<|end|><|user|>hi<|end|><|assistant|>",
    ),
    "a tool's round trip": (
        {"messages": [
            *HI,
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"}, text("I look."), USE,
            ]},
            {"role": "user", "content": [RESULT, text("Well?")]},
        ]},
        '<|user|>hi<|end|><|assistant|>Hm.I look.<tool_call>{"name": "get_weather", "arguments": {"city": "Bern"}}'
        "</tool_call><|end|><|tool|>21<|end|><|user|>Well?<|end|><|assistant|>",
    ),
    "results in their order": (
        {"messages": [
            *HI, {"role": "assistant", "content": [USE, {**USE, "id": "toolu_2", "input": {}}]},
            {"role": "user", "content": [
                text("a"), {**RESULT, "content": [text("b"), text("c")]}, {**RESULT, "tool_use_id": "toolu_2"},
                {**RESULT, "content": None},
            ]},
        ]},
        "<|user|>a<|end|><|tool|>b\nc<|end|><|tool|>21<|end|><|tool|><|end|><|assistant|>",
    ),
    "a call that failed": (
        {"messages": [
            *HI, {"role": "assistant", "content": [USE]},
            {"role": "user", "content": [{**RESULT, "is_error": True}, {**RESULT, "is_error": True, "content": []}]},
        ]},
        "<|tool|>Error: 21<|end|><|tool|>Error: <|end|><|assistant|>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_what_the_template_is_given(serve, name: str) -> None:
    served: Served = await serve()
    fields, expected = CONVERSATIONS[name]
    assert (await prompt(served, **fields)).endswith(expected)


async def test_an_answer_continues_what_the_assistant_said_last(serve) -> None:
    served: Served = await serve()
    messages = [*HI, {"role": "assistant", "content": "Once upon"}]
    assert (await prompt(served, messages=messages)).endswith("<|assistant|>Once upon")
    assert (await prompt(served, messages=messages, **PADDING)).endswith("<|assistant|>Once upon")


async def test_tools_are_offered_and_called(serve) -> None:
    served: Served = await serve()
    served.engine.reply = f"I look.\n{CALL}\n{CALL.replace('Bern', 'Basel')}"
    asked = await prompt(served, tools=[{**WEATHER, "cache_control": {"type": "ephemeral"}, "type": "custom"}])
    assert asked.startswith('[{"type": "function", "function": {"name": "get_weather", "description": "Weather of a ')
    reply = await ask(served, tools=[WEATHER])
    assert [block["type"] for block in reply["content"]] == ["text", "tool_use", "tool_use"]
    assert [block["input"] for block in reply["content"][1:]] == [{"city": "Bern"}, {"city": "Basel"}]
    assert len({block["id"] for block in reply["content"][1:]}) == 2
    assert reply["content"][1]["id"].startswith("toolu_")
    assert reply["stop_reason"] == "tool_use"
    one = await ask(served, tools=[WEATHER], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [block["type"] for block in one["content"]] == ["text", "tool_use"]


@pytest.mark.parametrize(
    ("choice", "constrained"),
    [({"type": "any"}, True), ({"type": "tool", "name": "get_weather"}, True), ({"type": "auto"}, False)],
    ids=str,
)
async def test_the_choice_of_a_tool(serve, choice: dict[str, Any], constrained: bool) -> None:
    served: Served = await serve()
    served.engine.reply = CALL
    reply = await ask(served, tools=[WEATHER], tool_choice=choice)
    assert reply["stop_reason"] == "tool_use"
    constraint = served.engine.submitted[0].sampling.constraint
    assert (constraint is not None) == constrained


async def test_no_tool_is_offered_where_none_may_be_called(serve) -> None:
    served: Served = await serve()
    served.engine.reply = CALL
    reply = await ask(served, tools=[WEATHER], tool_choice={"type": "none"})
    assert reply["content"] == [{"type": "text", "text": CALL}]
    assert await prompt(served, tools=[WEATHER], tool_choice={"type": "none"}) == await prompt(served)


async def test_thoughts_are_blocks(serve, folder: Path) -> None:
    with_tokens(folder, *THINK_TOKENS)
    served: Served = await serve()
    served.engine.reply = "Hm.</think>Yes."
    for kind in ("enabled", "adaptive"):
        thinking = {"type": kind, "budget_tokens": 1024}
        assert (await prompt(served, thinking=thinking)).endswith("<think>\n")
        reply = await ask(served, thinking=thinking)
        assert reply["content"] == [
            {"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "Yes."},
        ]  # fmt: skip
        count = len(served.engine.tokenizer.encode("Hm.", add_special_tokens=False))
        assert reply["usage"]["output_tokens_details"] == {"thinking_tokens": count}
    hidden = await ask(served, thinking={"type": "adaptive", "display": "omitted"})
    assert hidden["content"] == [{"type": "text", "text": "Yes."}]
    assert not (await prompt(served, thinking={"type": "disabled"})).endswith("<think>\n")


async def test_thinking_of_a_template_that_cannot_turn_it_on_is_reported(serve, folder: Path) -> None:
    byte_level_folder(folder)
    served: Served = await serve()
    body = {"max_tokens": 9, "messages": HI, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}
    answer = await served.post(MESSAGES, body)
    assert (answer.status, answer.headers["X-Ignored-Fields"]) == (200, "thinking, output_config.effort")
    assert (await served.post(COUNT, {"messages": HI, "thinking": {"type": "adaptive"}})).status == 200
    quiet = await served.post(MESSAGES, {**body, "thinking": {"type": "disabled"}, "output_config": None})
    assert "X-Ignored-Fields" not in quiet.headers
    strict: Served = await serve(unknown_fields="refuse")
    check_error(await strict.post(MESSAGES, body), 400, "invalid_request_error", "thinking: has no effect")
    del body["thinking"]
    check_error(await strict.post(MESSAGES, body), 400, "invalid_request_error", "output_config.effort: has no effect")


@pytest.mark.parametrize("streamed", [False, True])
async def test_why_an_answer_ends(serve, streamed: bool) -> None:
    served: Served = await serve()

    async def ended(**fields: Any) -> tuple[str, str | None]:
        end = (await stream(served, **fields))[-2]["delta"] if streamed else await ask(served, **fields)
        return end["stop_reason"], end["stop_sequence"]

    assert await ended() == ("end_turn", None)
    assert await ended(max_tokens=2) == ("max_tokens", None)
    assert await ended(stop_sequences=["zz", "wor"]) == ("stop_sequence", "wor")
    served.engine.reply = CALL
    assert await ended(tools=[WEATHER]) == ("tool_use", None)


async def test_more_tokens_than_the_context_has_are_cut(serve) -> None:
    served: Served = await serve()
    answer = await served.post(MESSAGES, {"messages": HI, "max_tokens": 32_000})
    room = 1024 - len(served.engine.submitted[0].prompt_token_ids)
    assert answer.headers["X-Max-Tokens"] == str(room)
    assert served.engine.submitted[0].sampling.max_tokens == room
    async with served.session.post(
        served.url + MESSAGES, json={"messages": HI, "max_tokens": 32_000, "stream": True}
    ) as response:
        assert response.headers["X-Max-Tokens"] == str(room)
        await response.read()
    assert "X-Max-Tokens" not in (await served.post(MESSAGES, {"messages": HI, "max_tokens": room})).headers
    long = await served.post(MESSAGES, {"messages": [{"role": "user", "content": "b" * 2000}], "max_tokens": 1})
    check_error(long, 400, "invalid_request_error", "messages: the prompt is too long")


async def test_sampling_parameters_reach_the_engine(serve) -> None:
    served: Served = await serve()
    await ask(served, temperature=0.5, top_p=0.9, top_k=7, stop_sequences=["x"], max_tokens=11)
    params = served.engine.submitted[0].sampling
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.5, 0.9, 7, 11)
    assert tuple(params.stop) == ("x",)


@pytest.mark.parametrize("where", ["output_config", "output_format"])
async def test_a_format_constrains_the_answer(serve, where: str) -> None:
    served: Served = await serve()
    form = {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    await ask(served, **{where: {"format": form} if where == "output_config" else form})
    constraint = served.engine.submitted[0].sampling.constraint
    assert constraint is not None
    assert constraint.kind == "json_schema"


async def test_fields_without_effect(serve) -> None:
    served: Served = await serve()
    body = {
        "max_tokens": 9, "messages": HI, "service_tier": "auto", "betas": ["a"], "container": None, "mcp_servers": [],
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "speed": "standard",
        "cache_control": {"type": "ephemeral"}, "inference_geo": "eu", "diagnostics": {"previous_message_id": None},
        "tools": [WEATHER, {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}], "foo": 1,
        "tool_choice": {"type": "auto"},
    }  # fmt: skip
    answer = await served.post(MESSAGES + "?beta=true", body)
    assert (answer.status, answer.headers["X-Ignored-Fields"]) == (200, "foo, tools[1]")


async def test_the_user_shares_fairly(serve) -> None:
    served: Served = await serve()
    for padding in ({}, PADDING):
        for user in ("a", "b", None):
            await ask(served, metadata={"user_id": user}, **padding)
    await served.post("/v1/chat/completions", {"messages": HI, "max_tokens": 9, "user": "a"})
    *small, chat = [request.tenant for request in served.engine.submitted]
    assert small[:3] == small[3:]
    assert len(set(small)) == 3
    assert chat == small[0]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_large_body_is_answered_alike(serve, streamed: bool) -> None:
    served: Served = await serve()
    served.engine.reply = f"<think>Hm.</think>I look.\n{CALL}"
    body = {"tools": [WEATHER], "tool_choice": {"type": "auto"}, "max_tokens": 32_000, "temperature": 0.5}
    if streamed:
        small, large = await stream(served, **body), await stream(served, **body, **PADDING)
        assert [event["type"] for event in small] == [event["type"] for event in large]
    else:
        small, large = await ask(served, **body), await ask(served, **body, **PADDING)
        assert [block["type"] for block in small["content"]] == ["thinking", "text", "tool_use"]
        assert [block["type"] for block in large["content"]] == ["thinking", "text", "tool_use"]
    one, other = served.engine.submitted
    assert (one.prompt_token_ids, one.sampling) == (other.prompt_token_ids, other.sampling)


async def test_tokens_are_counted_as_they_are_sent(serve) -> None:
    served: Served = await serve()
    for fields in (
        {}, {"system": "Be short."}, {"tools": [WEATHER]}, {"tools": [WEATHER], "tool_choice": {"type": "none"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"messages": [*HI, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [RESULT]}]},
        {"system": "x" * 800}, PADDING,
    ):  # fmt: skip
        counted = await served.post(COUNT, {"model": "fake", "messages": HI, **fields})
        await ask(served, **fields)
        assert counted.body == {"input_tokens": len(served.engine.submitted[-1].prompt_token_ids)}
        assert counted.headers["request-id"]
    longer = await served.post(COUNT, {"messages": [{"role": "user", "content": "b" * 5000}]})
    assert longer.body["input_tokens"] > 1024


async def test_probes_of_clients_and_the_list_of_endpoints(serve) -> None:
    served: Served = await serve()
    async with served.session.head(served.url + "/") as response:
        assert response.status == 200
    async with served.session.get(served.url + "/") as response:
        assert f"{MESSAGES}, {COUNT}" in await response.text()
