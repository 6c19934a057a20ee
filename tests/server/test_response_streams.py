"""Streams of drawn responses: valid by OpenAI's schemas, and the same as whole ones, however the text is cut."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.server import openai_schema
from tests.server.conftest import Served
from tests.server.conversation import TEMPLATE
from tests.server.response_events import check_frame, joined, stream
from tests.text.folders import byte_level_folder, with_tokens

CASES = 400
VALIDATED = 4
"""One case of so many is held against the schemas, which takes most of the time."""

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": None}
CUSTOM = {
    "type": "custom",
    "name": "patch",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x+/"},
}
NAMESPACE = {
    "type": "namespace", "name": "mcp__files", "description": "Files",
    "tools": [{"type": "function", "name": "read"}, {"type": "custom", "name": "write"}],
}  # fmt: skip
TOOLS = [FUNCTION, CUSTOM, NAMESPACE]
WORDS = ["hello", " world", "\n", "é", "😀", "<", "<think", "</", '"', "\\", "{", " ", "a b"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_tokens(byte_level_folder(tmp_path / "model", chat_template=TEMPLATE), "<think>", "</think>")


def text(draw: random.Random, most: int = 6) -> str:
    return "".join(draw.choices(WORDS, k=draw.randint(0, most)))


def call(draw: random.Random) -> str:
    """A call of some tool, or what only looks like one."""
    name = draw.choice(["f", "patch", "mcp__files.read", "mcp__files.write", "nothing"])
    arguments = draw.choice(
        [{}, {"input": text(draw, 20)}, {"a": text(draw, 60)}, {"input": 5}, {"input": "patch" * 30}, {"a": "b" * 99}]
    )
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=draw.random() < 0.5)
    if draw.random() < 0.1:
        body = body[: draw.randrange(len(body))]
    return f"<tool_call>\n{body}\n</tool_call>"


def answer(draw: random.Random) -> str:
    parts = [f"<think>{text(draw)}</think>\n\n"] if draw.random() < 0.6 else []
    for _ in range(draw.randint(0, 3)):
        parts.append(draw.choice([text, call])(draw))
    return "".join(parts)


def request(draw: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {"input": "hi", "temperature": 0}
    if draw.random() < 0.8:
        body["tools"] = TOOLS
    if draw.random() < 0.5:
        body["max_output_tokens"] = draw.choice([1, draw.randint(1, 20), draw.randint(1, 200), 5000])
    if draw.random() < 0.5:
        body |= {"include": ["message.output_text.logprobs"], "top_logprobs": draw.randint(0, 2)}
    if draw.random() < 0.2:
        body["parallel_tool_calls"] = False
    if draw.random() < 0.1:
        body["tool_choice"] = "none"
    return body


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    """Return what two responses to the same request have in common."""
    numbers = itertools.count()
    plain = {name: value for name, value in response.items() if name not in ("id", "created_at", "completed_at")}
    ids = ("id", "call_id")
    plain["output"] = [
        {name: next(numbers) if name in ids else value for name, value in item.items()} for item in plain["output"]
    ]
    return plain


async def test_streams_are_valid_and_join_to_whole_responses(serve) -> None:
    served: Served = await serve()
    served.engine.info = served.engine.info._replace(max_model_len=4096)
    kinds: set[tuple[str, str]] = set()
    for seed in range(CASES):
        draw = random.Random(seed)
        served.engine.reply, body = answer(draw), request(draw)
        served.engine.steps_per_list = draw.choice([1, 1, 2, 5, 100])
        events = await stream(served.session, served.url, body)
        check_frame(events)
        for name, event in events if seed % VALIDATED == 0 else ():
            openai_schema.check(openai_schema.EVENTS[name], event)
        last = events[-1][1]["response"]
        rebuilt = joined(events)
        assert {**last, "output": rebuilt["output"]} == last, f"seed {seed}"
        whole = (await served.post("/v1/responses", body)).body
        assert without_ids(whole) == without_ids(last), f"seed {seed}"
        assert (await served.get(f"/v1/responses/{last['id']}")).body == last
        kinds |= {(item["type"], item["status"]) for item in last["output"]}
        check_logprobs(body, last)
    assert kinds == {
        (kind, status)
        for kind in ("message", "reasoning", "function_call", "custom_tool_call")
        for status in ("completed", "incomplete")
    }


def check_logprobs(body: dict[str, Any], response: dict[str, Any]) -> None:
    """Log-probabilities of a message are those of the tokens that its text is made of, perhaps with ends of others."""
    for item in response["output"]:
        if item["type"] == "message":
            (part,) = item["content"]
            tokens = [bytes(entry["bytes"]) for entry in part["logprobs"]]
            if "include" not in body:
                assert tokens == []
            elif "\ufffd" not in part["text"]:
                assert part["text"].encode() in b"".join(tokens)
                assert all(len(entry["top_logprobs"]) == body["top_logprobs"] for entry in part["logprobs"])


async def test_a_failure_after_the_first_event_is_two_events(serve) -> None:
    served: Served = await serve()
    served.engine.reply = "hello world " * 20
    async with served.session.post(served.url + "/v1/responses", json={"input": "hi", "stream": True}) as reply:
        first = await reply.content.readuntil(b"output_text.delta")
        served.engine.fail_requests("the step failed")
        rest = (await reply.content.read()).decode()
    assert first.startswith(b"event: response.created\n")
    names = [line.removeprefix("event: ") for line in rest.split("\n") if line.startswith("event: ")]
    assert names[-2:] == ["error", "response.failed"]
    data = [json.loads(line.removeprefix("data: ")) for line in rest.split("\n") if line.startswith("data: ")]
    error, failed = data[-2:]
    openai_schema.check("ResponseErrorEvent", error)
    openai_schema.check("ResponseFailedEvent", failed)
    assert (failed["response"]["status"], failed["response"]["error"]["code"]) == ("failed", "server_error")
    assert (await served.get(f"/v1/responses/{failed['response']['id']}")).status == 404
