"""The real curl against the server: whole answers, streams, errors."""

import asyncio
import json
import shutil

import pytest

from tests.server.conftest import Served

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


async def curl(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "curl", "--silent", "--show-error", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    told, failed = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, failed.decode()
    return told.decode()


def post(served: Served, path: str, body: object) -> list[str]:
    return [served.url + path, "-H", "Content-Type: application/json", "-d", json.dumps(body)]


async def test_a_whole_answer(serve) -> None:
    served: Served = await serve()
    told = json.loads(await curl(*post(served, "/v1/completions", {"prompt": "a", "logprobs": 1})))
    assert told["choices"][0]["text"] == "hello world"
    assert len(told["choices"][0]["logprobs"]["tokens"]) == told["usage"]["completion_tokens"]


async def test_a_stream(serve) -> None:
    served: Served = await serve()
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    told = await curl("--no-buffer", *post(served, "/v1/chat/completions", body))
    events = [line.removeprefix("data: ") for line in told.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == "hello world"


async def test_headers_and_errors(serve) -> None:
    served: Served = await serve()
    told = await curl(
        "--include", "-H", "X-Request-Id: mine", *post(served, "/v1/completions", {"prompt": "a", "n": 0})
    )
    assert told.startswith("HTTP/1.1 400")
    assert "out of range" in told
    told = await curl("--include", "-H", "X-Request-Id: mine", *post(served, "/v1/completions", {"prompt": "a"}))
    assert "X-Request-Id: mine" in told


async def test_a_body_in_chunks(serve) -> None:
    served: Served = await serve()
    told = await curl("-H", "Transfer-Encoding: chunked", *post(served, "/v1/completions", {"prompt": "a"}))
    assert json.loads(told)["choices"][0]["text"] == "hello world"


async def test_http_1_0(serve) -> None:
    served: Served = await serve()
    told = await curl("--http1.0", *post(served, "/v1/completions", {"prompt": "a", "stream": True}))
    assert told.endswith("data: [DONE]\n\n")
