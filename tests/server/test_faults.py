"""The engine fails, dies or is not ready; the server is told to stop."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest

from jaxinfer.server.run import bind_socket
from jaxinfer.server.run import serve as run_server
from jaxinfer.serving import generation
from jaxinfer.serving.config import ServerConfig
from jaxinfer.text import TextProcessor
from tests.engine.reading import until
from tests.server.conftest import Served
from tests.server.conversation import CHAT
from tests.server.fake_engine import FakeEngine
from tests.server.openai_error import check


async def test_readiness_follows_the_engine(serve) -> None:
    served: Served = await serve()
    for path in ("/readyz", "/health", "/healthz"):
        assert (await served.get(path)).status == 200
    served.engine.die()
    for path in ("/readyz", "/health"):
        check(await served.get(path), 503, None)
    assert (await served.get("/healthz")).status == 200
    answer = await served.post("/v1/completions", {"prompt": "a"})
    check(answer, 503, None)
    assert "Retry-After" in answer.headers


@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
async def test_an_engine_that_dies_in_mid_stream_ends_it_with_an_error_event(serve, prompt: object) -> None:
    served: Served = await serve()
    served.engine.reply = "word " * 40
    body = {"prompt": prompt, "stream": True, "max_tokens": 200}
    async with served.session.post(served.url + "/v1/completions", json=body) as response:
        assert response.status == 200
        await response.content.readline()
        served.engine.die("the device was lost")
        rest = (await response.content.read()).decode()
    last = rest.strip().split("\n\n")[-1].removeprefix("data: ")
    error = json.loads(last)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "the device was lost" in error["message"]
    assert "[DONE]" not in rest


async def test_the_openai_package_raises_when_the_engine_dies_in_mid_stream(serve) -> None:
    served: Served = await serve()
    served.engine.reply = "word " * 40
    stream = await served.client.completions.create(model="fake", prompt="a", max_tokens=200, stream=True)
    await anext(stream)
    served.engine.die()
    with pytest.raises(openai.APIError, match=r"^the device was lost$"):
        await read_all(stream)


async def test_an_engine_that_dies_during_a_whole_reply_is_503(serve) -> None:
    served: Served = await serve()
    served.engine.gate.clear()
    asking = asyncio.create_task(served.post("/v1/chat/completions", {"messages": CHAT}))
    await until(lambda: served.engine.active)
    served.engine.die()
    check(await asking, 503, None, "the device was lost")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
async def test_requests_without_a_token_are_tried_again_when_the_engine_is_back(serve, prompt, stream: bool) -> None:
    served: Served = await serve()
    served.engine.gate.clear()
    body = {"prompt": prompt, "stream": stream, "max_tokens": 4}

    async def ask() -> str:
        async with served.session.post(served.url + "/v1/completions", json=body) as response:
            return await response.text()

    asking = asyncio.create_task(ask())
    await until(lambda: len(served.engine.active) == len(prompt))
    served.engine.die(comes_back=True)
    assert not served.engine.active
    served.engine.come_back()
    await until(lambda: len(served.engine.active) == len(prompt))
    served.engine.gate.set()
    text = await asking
    first, second = (served.engine.submitted[place].max_wait or 0.0 for place in (0, len(prompt)))
    assert 0 < second < first  # the time until the engine was back counts
    assert "error" not in text
    assert "[DONE]" in text if stream else json.loads(text)["usage"]["completion_tokens"] == 4 * len(prompt)


async def test_they_are_tried_again_once(serve) -> None:
    served: Served = await serve()
    served.engine.gate.clear()
    asking = asyncio.create_task(served.post("/v1/completions", {"prompt": "a"}))
    for _ in range(2):
        await until(lambda: served.engine.active)
        served.engine.die(comes_back=True)
        served.engine.come_back()
    check(await asking, 503, None, "the device was lost")
    assert len(served.engine.submitted) == 2


async def test_an_engine_that_does_not_come_back_is_told_in_time(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "AWAY_SECONDS", 0.05)
    served: Served = await serve()
    served.engine.gate.clear()
    asking = asyncio.create_task(served.post("/v1/completions", {"prompt": "a"}))
    await until(lambda: served.engine.active)
    served.engine.die(comes_back=True)
    check(await asking, 503, None, "the device was lost")


async def test_who_leaves_while_the_engine_is_away_is_not_tried_again(serve) -> None:
    served: Served = await serve(max_open_requests=1)
    served.engine.gate.clear()
    asking = asyncio.create_task(served.post("/v1/completions", {"prompt": "a"}))
    await until(lambda: served.engine.active)
    served.engine.die(comes_back=True)
    asking.cancel()
    await asyncio.wait([asking])
    async with asyncio.timeout(30):
        while (await served.post("/tokenize", {"prompt": "a"})).status == 429:
            await asyncio.sleep(0.01)
    served.engine.come_back()
    served.engine.gate.set()
    assert (await served.post("/v1/completions", {"prompt": "b"})).status == 200
    assert len(served.engine.submitted) == 2


async def test_what_a_request_has_brought_about_is_its_error(serve) -> None:
    """A grammar that cannot go on: a 400 that names the field, or an event of that type after what was written."""
    served: Served = await serve(sse_keep_alive_interval=0.01)
    field, said = "response_format.json_schema.schema", "the grammar cannot go on"
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": CHAT})):
        served.engine.gate.clear()
        asking = asyncio.create_task(served.post(path, body))
        await until(lambda: served.engine.active)
        served.engine.fail_requests(said, field)
        answer = await asking
        check(answer, 400, field, said)
        assert answer.body["error"]["type"] == "invalid_request_error"
        async with served.session.post(served.url + path, json={**body, "stream": True}) as response:
            assert response.status == 200
            await until(lambda: served.engine.active)
            served.engine.fail_requests(said, field)
            rest = (await response.content.read()).decode()
        error = json.loads(rest.strip().split("\n\n")[-1].removeprefix("data: "))["error"]
        assert error == {
            "message": f"{field}: {said}", "type": "invalid_request_error", "param": field, "code": "constraint_failed",
        }  # fmt: skip
        assert "[DONE]" not in rest


async def test_a_failed_request_ends_with_an_error_and_nothing_else(serve) -> None:
    served: Served = await serve()
    served.engine.gate.clear()
    asking = asyncio.create_task(served.post("/v1/completions", {"prompt": ["a", "b"]}))
    await until(lambda: len(served.engine.active) == 2)
    served.engine.fail_requests("a kernel failed")
    check(await asking, 500, None, "a kernel failed")
    served.engine.gate.set()
    assert (await served.post("/v1/completions", {"prompt": "a"})).status == 200


async def test_an_unforeseen_failure_is_a_500_that_tells_nothing(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served: Served = await serve()

    def broken(request: object) -> None:
        raise ZeroDivisionError("/secret/path")

    monkeypatch.setattr(served.engine, "submit", broken)
    answer = await served.post("/v1/completions", {"prompt": "a"})
    check(answer, 500, None)
    assert "secret" not in json.dumps(answer.body)
    assert (await served.get("/readyz")).status == 200


async def read_all(stream: AsyncIterator[Any]) -> list[Any]:
    return [chunk async for chunk in stream]


async def run_in_task(folder, engine_reply: str = "hello world", **options):
    text = TextProcessor.from_folder(folder)
    engine = FakeEngine(text.tokenizer, engine_reply)
    config = ServerConfig(port=0, **options)
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run_server(engine, text, config, bind_socket(config), ready.set_result))
    return engine, task, await ready


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_requests_end_and_then_stops(folder, number: int) -> None:
    engine, task, url = await run_in_task(folder)
    engine.gate.clear()
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
        asking = asyncio.create_task(client.completions.create(model="fake", prompt="a"))
        await until(lambda: engine.active)
        os.kill(os.getpid(), number)
        await asyncio.sleep(0.1)
        with pytest.raises(openai.APIConnectionError):
            await openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0).models.list()
        engine.gate.set()
        assert (await asking).choices[0].text == "hello world"
    assert await task == 0


async def test_draining_is_bounded(folder) -> None:
    engine, task, url = await run_in_task(folder, drain_seconds=0.2)
    engine.gate.clear()
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
        asking = asyncio.create_task(client.completions.create(model="fake", prompt="a"))
        await until(lambda: engine.active)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(task, 20) == 0
        with pytest.raises(openai.APIError):
            await asking
    assert engine.active == set()


async def test_a_stream_that_draining_cuts_ends_with_an_error_event(folder) -> None:
    engine, task, url = await run_in_task(folder, "word " * 40, drain_seconds=0.2)
    async with aiohttp.ClientSession() as session:
        body = {"prompt": "a", "stream": True, "max_tokens": 200}
        async with session.post(url + "/v1/completions", json=body) as response:
            await response.content.readline()
            engine.gate.clear()
            os.kill(os.getpid(), signal.SIGTERM)
            rest = (await response.content.read()).decode()
    assert json.loads(rest.strip().split("\n\n")[-1].removeprefix("data: "))["error"]["code"] == "engine_unavailable"
    assert await asyncio.wait_for(task, 20) == 0


async def test_a_dead_engine_ends_the_server_with_an_honest_status(folder) -> None:
    engine, task, _ = await run_in_task(folder)
    engine.die()
    assert await asyncio.wait_for(task, 20) == 1
