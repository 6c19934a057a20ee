"""Streams that are silent send comment lines: by a clock of the test, and over HTTP."""

import asyncio
import json

import pytest

from jaxinfer.errors import ParameterError
from jaxinfer.server.keep_alive import COMMENT, KeepAlive
from jaxinfer.serving.config import ServerConfig
from tests.server.conftest import Served
from tests.server.conversation import CHAT


class Time:
    """A clock that stands still but for `pass_by`, which returns when everybody sleeps again."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, asyncio.Event]] = []
        self._asleep = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self._sleepers.append((self.now + seconds, woken))
        self._asleep.set()
        await woken.wait()

    async def pass_by(self, seconds: float) -> None:
        end = self.now + seconds
        await self._asleep.wait()
        while due := [sleeper for sleeper in self._sleepers if sleeper[0] <= end]:
            self._sleepers = [sleeper for sleeper in self._sleepers if sleeper not in due]
            self._asleep.clear()
            self.now = max(self.now, min(when for when, _ in due))
            for _, woken in due:
                woken.set()
            await self._asleep.wait()
        self.now = end


async def test_a_comment_comes_after_each_silent_interval() -> None:
    time, written = Time(), list[tuple[float, bytes]]()

    async def write(data: bytes) -> None:
        written.append((time.now, data))

    stream = KeepAlive(15.0, write, clock=lambda: time.now, sleep=time.sleep)
    async with stream.running():
        await time.pass_by(14.0)
        await stream.send(b"a")
        await time.pass_by(14.0)
        await stream.send(b"b")
        await time.pass_by(31.0)
    assert written == [(14.0, b"a"), (28.0, b"b"), (43.0, COMMENT), (58.0, COMMENT)]


async def test_no_comment_while_a_slow_client_holds_a_write() -> None:
    time, written, drained = Time(), list[bytes](), asyncio.Event()

    async def write(data: bytes) -> None:
        written.append(data)
        await drained.wait()

    stream = KeepAlive(15.0, write, clock=lambda: time.now, sleep=time.sleep)
    async with stream.running():
        sending = asyncio.create_task(stream.send(b"a"))
        await time.pass_by(40.0)
        assert written == [b"a"]
        drained.set()
        await sending
        await time.pass_by(15.0)
    assert written == [b"a", COMMENT]


async def test_an_interval_of_zero_writes_none() -> None:
    async def write(data: bytes) -> None:
        raise AssertionError(data)

    async def sleep(seconds: float) -> None:
        raise AssertionError(seconds)

    async with KeepAlive(0.0, write, clock=lambda: 0.0, sleep=sleep).running():
        await asyncio.sleep(0)


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_a_stream_that_waits_sends_comments_and_then_its_events(serve, path: str) -> None:
    served: Served = await serve(sse_keep_alive_interval=0.005)
    served.engine.gate.clear()
    body = {"stream": True, "max_tokens": 5, **({"messages": CHAT} if "chat" in path else {"prompt": "x"})}
    async with served.session.post(f"{served.url}/v1/{path}", json=body) as response:
        lines = response.content
        comments = 0
        while comments < 3:
            comments += await lines.readline() == b": keep-alive\n"
        served.engine.gate.set()
        rest = (await lines.read()).decode().split("\n\n")
    events = [event.removeprefix("data: ") for event in rest if event.startswith("data: ")]
    assert events[-1] == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    assert "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


async def test_comments_come_while_a_grammar_is_compiled(serve) -> None:
    served: Served = await serve(sse_keep_alive_interval=0.005)
    served.engine.compiled.clear()
    body = {"prompt": "x", "stream": True, "max_tokens": 5}
    async with served.session.post(f"{served.url}/v1/completions", json=body) as response:
        assert await response.content.readline() == b": keep-alive\n"
        assert not served.engine.submitted
        served.engine.compiled.set()
        assert (await response.content.read()).endswith(b"data: [DONE]\n\n")


async def test_clients_read_over_comments(serve) -> None:
    served: Served = await serve(sse_keep_alive_interval=0.005)
    served.engine.gate.clear()
    stream = await served.client.chat.completions.create(model="fake", messages=CHAT, stream=True)
    first = asyncio.create_task(anext(stream))
    await asyncio.sleep(0.05)
    served.engine.gate.set()
    assert (await first).choices[0].delta.role == "assistant"
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "hello world"


async def test_a_comment_that_cannot_be_written_ends_the_stream() -> None:
    failed = asyncio.Event()

    async def write(data: bytes) -> None:
        failed.set()
        raise RuntimeError("the transport is closed")

    with pytest.raises(RuntimeError, match="transport is closed"):
        async with KeepAlive(0.001, write).running():
            await failed.wait()


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_an_interval_is_a_finite_number(value: float) -> None:
    with pytest.raises(ParameterError, match=r"sse_keep_alive_interval: .* must be a finite number of seconds"):
        ServerConfig(sse_keep_alive_interval=value)
