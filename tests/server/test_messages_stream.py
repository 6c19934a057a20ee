"""A stream of /v1/messages means the same as the whole reply, whatever the model writes and wherever it is cut."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.engine.types import FinishReason
from tests.server.conftest import Served
from tests.server.conversation import CALL, TEMPLATE
from tests.server.message_stream import Accumulator, without_names
from tests.server.messages_server import HI, MESSAGES, WEATHER, ask, stream, with_context
from tests.text.folders import byte_level_folder

LONG_CALL = CALL.replace("Bern", "Bern" * 30)
PIECES = [
    "Hello", " ", "\n", "a\n\nb\nc", "a\n\nb\nc", "é", "<think>", "</think>", "Hm. ", CALL, CALL, LONG_CALL,
    CALL[:40], LONG_CALL[:-30], "<tool_call>no call</tool_call>", "<tool", "}", "wor",
    '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
]  # fmt: skip
"""Texts of which answers are put together: whole and broken thoughts, calls and tags."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_level_folder(tmp_path / "model", chat_template=TEMPLATE)


def drawn(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """Draw an answer, and fields of the request for it."""
    fields: dict[str, Any] = {"max_tokens": draw.choice([400, draw.randint(1, 300)])}
    if draw.random() < 0.7:
        fields["tools"] = [WEATHER]
        fields["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": draw.random() < 0.2}
    if draw.random() < 0.5:
        fields["thinking"] = {"type": draw.choice(["enabled", "disabled", "adaptive"]), "budget_tokens": 1024}
    if draw.random() < 0.2:
        fields["stop_sequences"] = [draw.choice(["wor", "}", "Bern", "Hm"])]
    if draw.random() < 0.2:
        fields["messages"] = [*HI, {"role": "assistant", "content": draw.choice(["Once", "<think>Hm"])}]
        fields.pop("tool_choice", None)
    return "".join(draw.choices(PIECES, k=draw.randint(0, 8))), fields


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(400, 4000, 400))])
async def test_a_stream_rebuilds_the_whole_reply(serve, first: int) -> None:
    served: Served = with_context(await serve())
    kinds: set[str] = set()
    for seed in range(first, first + 400):
        draw = random.Random(seed)
        served.engine.reply, fields = drawn(draw)
        served.engine.steps_per_list = draw.choice([1, 1, 2, 5, 1000])
        served.engine.cached_tokens = draw.choice([0, 16])
        events = await stream(served, **fields)
        served.engine.steps_per_list = draw.choice([1, 3, 1000])
        whole = await ask(served, **fields)
        told = Accumulator().read(events)
        assert without_names(told) == without_names(whole), (seed, served.engine.reply, fields)
        kinds |= {block["type"] for block in whole["content"]} | {whole["stop_reason"]}
    assert kinds == {"text", "thinking", "tool_use", "end_turn", "max_tokens", "stop_sequence"}


async def test_blocks_do_not_begin_with_the_line_break_that_joins_texts_in_a_chat(serve) -> None:
    served: Served = with_context(await serve())
    served.engine.reply = f"I look.\n{CALL}\nOnce\n\nmore.\n{CALL}\n\nDone."
    for steps in (1, 1000):
        served.engine.steps_per_list = steps
        content = Accumulator().read(await stream(served, tools=[WEATHER]))["content"]
        assert [block["text"] for block in content if block["type"] == "text"] == ["I look.", "Once\n\nmore.", "Done."]


async def test_the_input_of_a_call_comes_as_it_is_written(serve) -> None:
    served: Served = with_context(await serve())
    served.engine.reply = LONG_CALL
    events = await stream(served, tools=[WEATHER])
    pieces = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
    assert len(pieces) > 5
    assert "".join(pieces) == '{"city": "' + "Bern" * 30 + '"}'
    served.engine.reply = CALL.replace('"Bern"', "1.00000000000000000000001")
    async with served.session.post(
        served.url + MESSAGES, json={"messages": HI, "tools": [WEATHER], "max_tokens": 300}
    ) as response:
        assert '"input":{"city": 1.00000000000000000000001}' in await response.text()


async def test_a_call_that_was_cut_off_has_no_input(serve) -> None:
    served: Served = with_context(await serve())
    served.engine.reply = LONG_CALL
    reply = await ask(served, tools=[WEATHER], max_tokens=130)
    assert (reply["content"][0]["input"], reply["stop_reason"]) == ({}, "max_tokens")


async def test_an_answer_without_text_has_no_blocks(serve) -> None:
    served: Served = await serve()
    served.engine.end_at_once = FinishReason.STOP
    assert [event["type"] for event in await stream(served)] == ["message_start", "message_delta", "message_stop"]
    assert (await ask(served))["content"] == []


@pytest.mark.parametrize(
    ("fails", "kind"),
    [
        (lambda engine: engine.die(), "overloaded_error"),
        (lambda engine: engine.fail_requests("numbers went wrong"), "api_error"),
        (
            lambda engine: engine.fail_requests("no token is left", "tools[0].function.parameters"),
            "invalid_request_error",
        ),
    ],
    ids=["the engine dies", "a request fails", "a constraint fails"],
)
async def test_a_stream_that_breaks_ends_with_an_error(serve, fails, kind: str) -> None:
    served: Served = await serve()
    served.engine.reply = "hello " * 30
    body = {"messages": HI, "max_tokens": 200, "stream": True}
    async with served.session.post(served.url + MESSAGES, json=body) as response:
        await response.content.readuntil(b"text_delta")
        served.engine.gate.clear()
        await asyncio.sleep(0.05)
        fails(served.engine)
        rest = (await response.read()).decode()
    name, data = rest.strip().split("\n\n")[-1].split("\n")
    assert name == "event: error"
    error = json.loads(data.removeprefix("data: "))
    assert error["error"]["type"] == kind
    assert error["request_id"] == response.headers["request-id"]
    if kind == "invalid_request_error":
        assert error["error"]["message"] == "tools[0].input_schema: no token is left"
