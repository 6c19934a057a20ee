"""Large bodies are read in processes of their own, with the same outcome as small ones."""

import asyncio
import gc
import json
import os
import signal
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxinfer.server import body as body_module
from jaxinfer.server.errors import status_of
from jaxinfer.serving.bodies.structure import LARGE_BYTES
from jaxinfer.serving.bodies.unknown_fields import HEADER
from jaxinfer.serving.config import ServerConfig
from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.workers.jobs import Requests
from jaxinfer.serving.workers.pool import WorkerLimits, Workers
from jaxinfer.text import TextProcessor
from tests.children import children_with, worker_pids
from tests.server.conftest import Served
from tests.server.fake_engine import FakeEngine
from tests.server.openai_error import check

PADDING = {"metadata": {"padding": "x" * LARGE_BYTES}}
CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "hi"}]


def lists(ids: list[np.ndarray]) -> list[list[int]]:
    """Token ids of workers as the tokenizer has them."""
    return [one.tolist() for one in ids]


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the bodies that are decoded in the API process."""
    sizes: list[int] = []
    decode = body_module.decode_body

    def recorded(data: bytes, *arguments: Any) -> Any:
        sizes.append(len(data))
        return decode(data, *arguments)

    monkeypatch.setattr(body_module, "decode_body", recorded)
    return sizes


BODIES = {
    "/v1/completions": {"prompt": ["hello", "a b"], "max_tokens": 3, "stop": ["zz"], "logit_bias": {"5": 1}},
    "/v1/chat/completions": {"messages": CHAT, "max_tokens": 3, "temperature": 0.5},
    "/invocations": {"messages": CHAT, "max_tokens": 3},
}


@pytest.mark.parametrize("path", BODIES)
async def test_a_large_body_asks_the_engine_for_the_same(serve, path: str, read_here: list[int]) -> None:
    served: Served = await serve()
    small = await served.post(path, BODIES[path])
    large = await served.post(path, BODIES[path] | PADDING | {"temprature": 1})
    assert (small.status, large.status) == (200, 200), large.body
    assert large.headers[HEADER] == "temprature"
    assert [choice["text" if "text" in choice else "message"] for choice in small.body["choices"]] == [
        choice["text" if "text" in choice else "message"] for choice in large.body["choices"]
    ]
    half = len(served.engine.submitted) // 2
    for one, other in zip(served.engine.submitted[:half], served.engine.submitted[half:], strict=True):
        assert replace(one, request_id="") == replace(other, request_id="")
    assert len(read_here) == 1
    assert read_here[0] < LARGE_BYTES


async def test_an_echo_repeats_what_a_large_body_said(serve) -> None:
    served: Served = await serve()
    said = await served.post("/v1/completions", {"prompt": "hello", "echo": True, "max_tokens": 1, **PADDING})
    assert said.body["choices"][0]["text"].startswith("hello")
    messages = [*CHAT, {"role": "assistant", "content": "Once"}]
    body = {"messages": messages, "echo": True, "continue_final_message": True, "add_generation_prompt": False}
    told = await served.post("/v1/chat/completions", {**body, "max_tokens": 1, **PADDING})
    assert told.body["choices"][0]["message"]["content"].startswith("Once")


async def test_texts_and_ids_of_any_length_go_to_and_fro(serve, read_here: list[int]) -> None:
    served: Served = await serve()
    text = "hello wörld " * 30_000
    ids = served.engine.tokenizer.encode(text)
    told = await served.post("/tokenize", {"prompt": text})
    assert (told.body["count"], told.body["tokens"]) == (len(ids), ids)
    back = await served.post("/detokenize", {"tokens": ids})
    assert back.body["prompt"] == served.engine.tokenizer.decode(ids, skip_special_tokens=False)
    assert read_here == []


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("path", "body", "param", "said"),
    [
        ("/v1/completions", {"prompt": "a", "temperature": 101}, "temperature", "101"),
        ("/v1/completions", {"prompt": "a", "model": "other"}, "model", "not served"),
        ("/v1/completions", {"prompt": "a", "guided_json": "x"}, "guided_json", "is not JSON"),
        ("/v1/completions", {"prompt": list(range(300)) * 1000}, "prompt", "300000 tokens"),
        ("/v1/chat/completions", {"messages": CHAT * 5_001}, "messages", "10002 messages"),
        ("/v1/completions", {"prompt": "a", "stop": ["x"] * 20_000}, "stop", "at most 16"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {str(i): 1 for i in range(20_000)}}, "logit_bias", "300"),
        ("/v1/completions", {"prompt": "a", **{f"f{i}": 1 for i in range(20_000)}}, None, "at most 512"),
        ("/detokenize", {"tokens": [5] * 1_000_001}, "tokens", "at most 1000000"),
        ("/v1/completions", {"prompt": "a", "metadata": {"a": [[]] * 100_001}}, None, "at most 100000"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_large_body_that_is_wrong_is_told_so(
    serve, path: str, body: dict[str, Any], param: str | None, said: str, read_here: list[int]
) -> None:
    served: Served = await serve()
    if len(str(body)) < LARGE_BYTES:
        body = {**body, **PADDING}
    answer = await served.post(path, body)
    check(answer, 404 if param == "model" else 400, param, said)
    assert served.engine.submitted == []
    assert read_here == []


async def test_a_worker_that_was_killed_is_replaced(folder) -> None:
    text = TextProcessor.from_folder(folder)
    workers = Workers(text, ServerConfig(body_workers=1), "m")
    expected = text.tokenizer.encode_batch(["hello"])
    try:
        assert lists(await workers.encode(["hello"], add_special_tokens=True, params=["prompt"])) == expected
        (pid,) = worker_pids()
        os.kill(pid, signal.SIGSTOP)
        asking = asyncio.create_task(workers.encode(["hello"], add_special_tokens=True, params=["prompt"]))
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RequestError) as raised:
            await asking
        assert (status_of(raised.value), raised.value.code) == (503, "worker_lost")
        assert raised.value.retry_after is not None
        assert lists(await workers.encode(["hello"], add_special_tokens=True, params=["prompt"])) == expected
        assert worker_pids() != [pid]
    finally:
        workers.close()
        text.close()


async def test_a_stalled_worker_is_nobodys_mistake(folder) -> None:
    text = TextProcessor.from_folder(folder)
    workers = Workers(text, ServerConfig(body_workers=1), "m", WorkerLimits(wall_seconds=5.0))
    try:
        await workers.encode(["hello"], add_special_tokens=True, params=["prompt"])
        (pid,) = worker_pids()
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(RequestError, match="gave no answer within 5 s") as raised:
            await workers.encode(["hello" * 100_000], add_special_tokens=True, params=["prompt"])
        assert (status_of(raised.value), raised.value.code) == (503, "worker_lost")
        assert worker_pids() == []
    finally:
        workers.close()
        text.close()


@pytest.mark.long
async def test_a_job_that_takes_too_much_processor_time_is_ended(folder) -> None:
    text = TextProcessor.from_folder(folder)
    workers = Workers(text, ServerConfig(body_workers=1), "m", WorkerLimits(processor_seconds=1))
    long = ["hello " * 650_000] * 4
    try:
        with pytest.raises(RequestError, match="too much processor time") as raised:
            await workers.encode(long, add_special_tokens=True, params=["prompt"] * 4)
        assert (status_of(raised.value), raised.value.code) == (400, "body_too_complex")
        assert await workers.encode(["hello"], add_special_tokens=True, params=["prompt"])
    finally:
        workers.close()
        text.close()


async def test_who_goes_while_waiting_for_a_worker_takes_the_job_along(folder) -> None:
    text = TextProcessor.from_folder(folder)
    workers = Workers(text, ServerConfig(body_workers=1), "m")

    async def encode(what: str) -> list[np.ndarray]:
        return await workers.encode([what], add_special_tokens=True, params=["prompt"])

    class Body(str):
        """A text whose end can be seen."""

    try:
        await encode("hello")
        os.kill(worker_pids()[0], signal.SIGSTOP)
        held = asyncio.create_task(encode("first"))
        await asyncio.sleep(0.1)
        body = Body("second")
        gone = weakref.ref(body)
        left = asyncio.create_task(encode(body))
        del body
        await asyncio.sleep(0.1)
        left.cancel()
        await asyncio.wait([left])
        del left
        gc.collect()
        assert gone() is None
        held.cancel()
        await asyncio.sleep(0.1)
        assert not held.done()  # its body is with the worker
        os.kill(worker_pids()[0], signal.SIGCONT)
        await asyncio.wait([held])
        assert held.cancelled()
        assert lists(await encode("hello")) == text.tokenizer.encode_batch(["hello"])
    finally:
        workers.close()
        text.close()


async def test_at_most_so_many_workers_run(folder, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TextProcessor.from_folder(folder)
    workers = Workers(text, ServerConfig(body_workers=2), "m")
    try:
        asked = [workers.encode([str(i)], add_special_tokens=True, params=["prompt"]) for i in range(12)]
        told = await asyncio.gather(*asked)
        assert list(map(lists, told)) == [text.tokenizer.encode_batch([str(i)]) for i in range(12)]
        assert 1 <= len(worker_pids()) <= 2
    finally:
        workers.close()
        text.close()


def test_a_worker_is_not_given_the_keys(folder, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TextProcessor.from_folder(folder)
    workers = Workers(text, ServerConfig(api_key="hunter2"), "m")
    assert b"hunter2" not in workers._settings
    workers.close()
    text.close()


@pytest.mark.parametrize(
    ("options", "body", "param"),
    [
        ({}, {"request_id": "bad id", "temperature": 999}, "request_id"),
        ({}, {"model": "other", "request_id": "bad id"}, "model"),
        ({"unknown_fields": "refuse"}, {"reasoning_effort": "high", "temperature": 999}, "reasoning_effort"),
    ],
)
async def test_of_several_mistakes_the_same_is_told(serve, options, body: dict[str, Any], param: str) -> None:
    served: Served = await serve(**options)
    for padding in ({}, PADDING):
        answer = await served.post("/v1/chat/completions", {"messages": CHAT, **body, **padding})
        check(answer, 404 if param == "model" else 400, param, "")


async def test_what_is_left_of_a_large_body_is_small(folder) -> None:
    text = TextProcessor.from_folder(folder)
    workers = Workers(text, ServerConfig(body_workers=1), "m")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat = [*CHAT, {"role": "assistant", "content": "Once", "tool_calls": [call] * 1000}]
    continued = {"continue_final_message": True, "add_generation_prompt": False}
    many = {str(i): i for i in range(50_000)}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("completions", {"prompt": ["a", "b"], "logit_bias": {"5": 1.5}, "user": many, "metadata": many}),
        ("chat", {"messages": chat, "echo": True, "user": many, **continued}),
    ]
    try:
        for endpoint, body in asked:
            reply = await workers.read(endpoint, json.dumps(body).encode(), FakeEngine(text.tokenizer).info)
            assert isinstance(reply, Requests)
            assert len(reply.body) < 4_000
            assert len(reply.sampling) == 1
            assert all(request.sampling is reply.sampling[0] for request, _ in reply.prepared())
    finally:
        workers.close()
        text.close()


async def test_bodies_of_many_parts_wait_within_the_budget(serve) -> None:
    served: Served = await serve(max_body_bytes=250_000, max_pending_body_bytes=500_000, body_workers=1)
    body = {"prompt": "a", "metadata": {"a": [[]] * 60_000}}
    assert (await served.post("/v1/completions", body)).status == 200
    (pid,) = worker_pids()
    os.kill(pid, signal.SIGSTOP)
    waiting = [asyncio.create_task(served.post("/v1/completions", body)) for _ in range(3)]
    done, left = await asyncio.wait(waiting, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    assert {task.result().body["error"]["code"] for task in done} == {"too_many_bodies"}
    os.kill(pid, signal.SIGCONT)
    assert 200 in {(await task).status for task in left}


async def test_a_worker_has_no_keys_in_its_environment(folder, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAXINFER_API_KEY", "JAXINFER_ENGINE_KEY", "HF_TOKEN", "SOMEBODYS_SECRET"):
        monkeypatch.setenv(name, "hunter2")
    before = {child.pid for child in children_with("")}
    text = TextProcessor.from_folder(folder)
    workers = Workers(text, ServerConfig(), "m")
    try:
        assert await workers.encode(["hello"], add_special_tokens=False, params=["prompt"])
        text.chat_template.check()
        started = [child for child in children_with("") if child.pid not in before]
        commands = [" ".join(child.cmdline()) for child in started]
        assert sorted("template_worker" in each for each in commands) == [False, True]
        assert sorted("jaxinfer.serving.workers.main" in each for each in commands) == [False, True]
        for process in started:
            environment = process.environ()
            assert "PATH" in environment
            assert "hunter2" not in environment.values()
    finally:
        workers.close()
        text.close()
