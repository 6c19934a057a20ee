"""Bodies for Anthropic's Messages API, a server whose context holds tools, and the form of its errors."""

from typing import Any

from jaxinfer.serving.bodies.structure import LARGE_BYTES
from tests.server.conftest import Answer, Served
from tests.server.message_stream import read_events

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HI: list[Any] = [{"role": "user", "content": "hi"}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
PADDING = {"context_management": {"edits": ["x" * LARGE_BYTES]}}
"""Without effect, and so long that a worker reads the body."""


def with_context(served: Served, length: int = 1024) -> Served:
    """A server whose model has a context of this length."""
    served.engine.info = served.engine.info._replace(max_model_len=length)
    return served


async def ask(served: Served, **fields: Any) -> dict[str, Any]:
    """The whole reply to a request."""
    answer = await served.post(MESSAGES, {"model": "fake", "max_tokens": 300, "messages": HI, **fields})
    assert answer.status == 200, answer.body
    return answer.body


async def stream(served: Served, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream."""
    body = {"model": "fake", "max_tokens": 300, "messages": HI, **fields, "stream": True}
    async with served.session.post(served.url + MESSAGES, json=body) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        return read_events(await response.text())


async def prompt(served: Served, **fields: Any) -> str:
    """The prompt that a request makes."""
    await ask(served, **fields)
    ids = served.engine.submitted[-1].prompt_token_ids
    return served.engine.tokenizer.decode(ids, skip_special_tokens=False)


def check_error(answer: Answer, status: int, kind: str, *said: str) -> None:
    """An error in Anthropic's form, with the request's id in body and header."""
    assert answer.status == status, answer.body
    assert set(answer.body) == {"type", "error", "request_id"}
    assert answer.body["type"] == "error"
    assert set(answer.body["error"]) == {"type", "message"}
    assert answer.body["error"]["type"] == kind
    assert answer.body["request_id"] == answer.headers["request-id"]
    for text in said:
        assert text in answer.body["error"]["message"], answer.body
