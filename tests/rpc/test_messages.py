"""Messages that are large, many, wrong for their method, or never come."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jaxinfer.rpc import jaxinfer_pb2 as pb
from jaxinfer.rpc import reading_places
from jaxinfer.rpc.messages import SHORT_BYTES
from jaxinfer.serving.bodies.structure import LARGE_BYTES
from jaxinfer.serving.requests import tokens
from tests.engine.reading import until
from tests.rpc.public import Public, Serve, collect, refused, stub_of, text_of

Code = grpc.StatusCode
TWO_PLACES: dict[str, Any] = {"max_body_bytes": 1000, "max_pending_body_bytes": 4000}
"""One place for calls with a key, one for others."""


async def nothing() -> AsyncIterator[bytes]:
    """A client whose message never comes."""
    await asyncio.Event().wait()
    yield b""


def stalled(served: Public, path: str = "/jaxinfer.v1.Jaxinfer/Tokenize") -> Any:
    return served.channel.stream_unary(path)(nothing())


async def begun(served: Public, count: int = 1) -> list[Any]:
    """Calls that the server waits for."""
    calls = [stalled(served) for _ in range(count)]
    await asyncio.sleep(0.2)
    assert not any(call.done() for call in calls)
    return calls


async def tokenize(served: Public, text: str = "hello") -> list[int]:
    async with asyncio.timeout(30):
        return list((await served.stub.Tokenize(pb.TokenizeRequest(text=text))).token_ids)


async def test_a_call_without_a_key_is_refused_before_its_message_comes(serve: Serve) -> None:
    served = await serve(api_key="secret")
    for path in ("/jaxinfer.v1.Jaxinfer/Tokenize", "/jaxinfer.v1.Jaxinfer/Generate", "/other.Service/Method"):
        async with asyncio.timeout(30):
            code, _, trailers = await refused(stalled(served, path))
        assert (code, trailers["jaxinfer-code"]) == (Code.UNAUTHENTICATED, "invalid_api_key")


@pytest.mark.parametrize("path", ["/jaxinfer.v1.Jaxinfer/Tokenize", "/grpc.health.v1.Health/Check"])
async def test_a_message_must_come_in_time(serve: Serve, path: str) -> None:
    served = await serve(client_body_timeout=0.3)
    async with asyncio.timeout(30):
        code, details, trailers = await refused(stalled(served, path))
    assert (code, trailers["jaxinfer-code"]) == (Code.DEADLINE_EXCEEDED, "body_timeout")
    assert "0.3 s" in details


async def test_a_message_that_stalls_makes_room_for_others(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = await serve(**TWO_PLACES)
    monkeypatch.setattr(reading_places, "GRACE_SECONDS", 0.5)
    calls = await begun(served, 3)  # one has the place, two wait
    assert await tokenize(served) == served.engine.tokenizer.encode("hello")
    await until(lambda: sum(call.done() for call in calls) == 2)
    await asyncio.sleep(1.0)
    (left,) = (call for call in calls if not call.done())  # nobody waits for its place
    for call in calls:
        if call is not left:
            code, _, trailers = await refused(call)
            assert (code, trailers["jaxinfer-code"]) == (Code.RESOURCE_EXHAUSTED, "too_many_bodies")
            assert int(trailers["retry-after"]) > 0
    assert await tokenize(served)


async def test_health_has_a_place_of_its_own(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = await serve(**TWO_PLACES)
    monkeypatch.setattr(reading_places, "GRACE_SECONDS", 1000.0)
    calls = await begun(served, 2)
    health = stub_of(health_pb2_grpc.HealthStub, served.channel)
    async with asyncio.timeout(30):
        answer = await health.Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    for call in calls:
        call.cancel()
    assert await tokenize(served)


async def test_a_client_that_goes_gives_its_place_back(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = await serve(**TWO_PLACES)
    monkeypatch.setattr(reading_places, "GRACE_SECONDS", 1000.0)
    for call in await begun(served, 4):
        call.cancel()
    assert await tokenize(served)


@pytest.mark.parametrize(
    "path",
    [
        "/jaxinfer.v1.Jaxinfer/Abort",
        "/jaxinfer.v1.Jaxinfer/GetModel",
        "/grpc.health.v1.Health/Check",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ],
)
async def test_methods_without_a_prompt_take_short_messages(serve: Serve, path: str) -> None:
    served = await serve()
    data = b"\x0a" + b"\xfd\xff\x03" + b"a" * (SHORT_BYTES - 3)
    code, details, trailers = await refused(served.channel.unary_stream(path)(data))
    assert (code, trailers["jaxinfer-code"]) == (Code.RESOURCE_EXHAUSTED, "body_too_large")
    assert f"{len(data)} bytes" in details


async def test_a_call_without_a_message_is_refused(serve: Serve) -> None:
    served = await serve()

    async def empty() -> AsyncIterator[bytes]:
        for data in ():
            yield data

    code, _, trailers = await refused(served.channel.stream_unary("/jaxinfer.v1.Jaxinfer/GetModel")(empty()))
    assert (code, trailers["jaxinfer-code"]) == (Code.INVALID_ARGUMENT, "invalid_message")


async def test_large_messages_wait_for_workers_within_a_limit(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = await serve(max_body_bytes=LARGE_BYTES + 1000, max_pending_body_bytes=2 * LARGE_BYTES + 2000)
    encode, gate = served.context.workers.encode, asyncio.Event()
    asked = 0

    async def late(*texts: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        await gate.wait()
        return await encode(*texts, **options)

    monkeypatch.setattr(served.context.workers, "encode", late)
    text = "hello " * (LARGE_BYTES // 6 + 10)
    first = asyncio.create_task(tokenize(served, text))
    await until(lambda: asked == 1)
    code, _, trailers = await refused(served.stub.Tokenize(pb.TokenizeRequest(text=text)))
    assert (code, trailers["jaxinfer-code"]) == (Code.RESOURCE_EXHAUSTED, "too_many_bodies")
    assert await tokenize(served) == served.engine.tokenizer.encode("hello")  # small ones need no room
    gate.set()
    assert await first == served.engine.tokenizer.encode(text)
    assert await tokenize(served, text)


async def test_a_message_is_forgotten_while_tokens_come(serve: Serve) -> None:
    served = await serve(max_body_bytes=LARGE_BYTES + 1000, max_pending_body_bytes=2 * LARGE_BYTES + 2000)
    served.engine.gate.clear()
    request = pb.GenerateRequest(text="hello " * (LARGE_BYTES // 6 + 10), truncate_prompt_tokens=5)
    calls = []
    for _ in range(3):  # there is room for one
        calls.append(served.stub.Generate(request))
        async with asyncio.timeout(30):
            assert await calls[-1].initial_metadata()
    served.engine.gate.set()
    assert [text_of(await collect(call)) for call in calls] == ["hello world"] * 3


async def test_many_ids_of_a_worker_are_counted(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = await serve()
    monkeypatch.setattr(tokens, "MAX_IDS", 1000)
    text = "hello " * LARGE_BYTES
    code, _, trailers = await refused(served.stub.Tokenize(pb.TokenizeRequest(text=text)))
    assert (code, trailers["jaxinfer-field"]) == (Code.INVALID_ARGUMENT, "text")
    code, details, trailers = await refused(served.stub.Generate(pb.GenerateRequest(text=text)))
    assert (code, trailers["jaxinfer-code"]) == (Code.INVALID_ARGUMENT, "context_length_exceeded")
    assert "more than 255 tokens" in details
    await collect(served.stub.Generate(pb.GenerateRequest(text=text + "world", truncate_prompt_tokens=3)))
    assert list(served.engine.submitted[-1].prompt_token_ids) == served.engine.tokenizer.encode(text + "world")[-3:]
