"""A server slower than its engine: a list holds several deltas of a choice, of which a client sees one chunk."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.server.conftest import Served

USAGE = {"include_usage": True, "continuous_usage_stats": True}
COMPLETION = ("/v1/completions", {"prompt": "hi"})
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})


async def _chunks(served: Served, path: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    async with served.session.post(served.url + path, json={**body, "stream": True}) as response:
        assert response.status == 200
        async for line in response.content:
            if line.startswith(b"data: {"):
                yield json.loads(line.removeprefix(b"data: "))


async def _choices(served: Served, path: str, body: dict[str, Any], index: int) -> list[dict[str, Any]]:
    chunks = [choice async for chunk in _chunks(served, path, body) for choice in chunk["choices"]]
    return [choice for choice in chunks if choice["index"] == index]


def _whole(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """What the chunks of a choice tell together: lists and texts one after the other, else what the last says."""
    whole: dict[str, Any] = {}
    for choice in choices:
        told = {f"logprobs.{name}": value for name, value in (choice["logprobs"] or {}).items()}
        flat = {**choice, **choice.get("delta", {}), **told}
        for name, value in flat.items():
            if isinstance(value, list) or name in ("text", "content"):
                empty: Any = "" if isinstance(value, str) else []
                whole[name] = whole.get(name, empty) + value
            elif name in ("finish_reason", "stop_reason"):
                whole[name] = value
    return whole


@pytest.mark.parametrize(("path", "body"), [COMPLETION, CHAT], ids=["completion", "chat"])
@pytest.mark.parametrize("steps", [2, 3, 100])
async def test_usage_grows_with_every_chunk(serve, path: str, body: dict[str, Any], steps: int) -> None:
    served: Served = await serve()
    served.engine.steps_per_list = steps
    chunks = [chunk async for chunk in _chunks(served, path, {**body, "stream_options": USAGE})]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk["choices"]]
    assert counts == sorted(set(counts))
    tokens = len(served.engine.tokenizer.encode("hello world")) + 1
    assert counts[-1] == tokens == chunks[-1]["usage"]["completion_tokens"]
    # A chat begins with the role, before any token.
    assert len([count for count in counts if count]) == -(-tokens // steps)


ASKED: list[tuple[str, dict[str, Any]]] = [
    ("log-probabilities", {"logprobs": 2, "return_token_ids": True}),
    ("echo", {"logprobs": 1, "echo": True}),
    ("stop string", {"stop": ["wor"], "logprobs": 0, "return_token_ids": True}),
    ("length", {"max_tokens": 3, "return_token_ids": True}),
    ("stop token", {"stop_token_ids": [7], "return_token_ids": True}),
]


@pytest.mark.parametrize("steps", [2, 100])
@pytest.mark.parametrize("params", [params for _, params in ASKED], ids=[name for name, _ in ASKED])
async def test_a_choice_says_the_same_in_fewer_chunks(serve, params: dict[str, Any], steps: int) -> None:
    served: Served = await serve()
    if "stop_token_ids" in params:
        served.engine.stop_token = 7
    path, body = COMPLETION
    for index in range(2):
        served.engine.steps_per_list = 1
        one_by_one = await _choices(served, path, {**body, **params, "n": 2}, index)
        served.engine.steps_per_list = steps
        together = await _choices(served, path, {**body, **params, "n": 2}, index)
        assert _whole(together) == _whole(one_by_one)
        assert len(together) < len(one_by_one)


async def test_a_chat_says_the_same_in_fewer_chunks(serve) -> None:
    served: Served = await serve()
    path, body = CHAT
    asked = {**body, "logprobs": True, "top_logprobs": 1}
    one_by_one = await _choices(served, path, asked, 0)
    served.engine.steps_per_list = 100
    together = await _choices(served, path, asked, 0)
    assert _whole(together) == _whole(one_by_one)
    assert len(together) < len(one_by_one)


async def test_the_engine_is_told_to_stop_where_the_string_was_found(serve) -> None:
    served: Served = await serve()
    served.engine.reply = "hello world and more"
    served.engine.steps_per_list = 8
    answer = await served.post("/v1/completions", {"prompt": "hi", "stop": ["wor"], "max_tokens": 100})
    assert answer.body["choices"][0]["text"] == "hello "
    assert len(served.engine.stopped) == 1
