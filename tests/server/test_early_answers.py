"""Every answer that does not wait for the handler leaves a usable connection, or says that it closes."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.children import worker_pids
from tests.server.conftest import Served
from tests.server.raw_http import RawAnswer, connect, read_answer

NEXT = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
SMALL = b'{"prompt": "a"}'
LARGE = b'{"prompt": "a", "user": "' + b"x" * 200_000 + b'"}'

Serve = Callable[..., Awaitable[Served]]


def request(body: bytes, *, sent: int | None = None, path: str = "/v1/completions", headers: str = "") -> bytes:
    """A POST, or the head and the first `sent` bytes of its body."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers.splitlines()]
    if "Content-Type" not in headers:
        lines.append("Content-Type: application/json")
    return "\r\n".join([*lines, "", ""]).encode() + body[:sent]


async def next_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: RawAnswer) -> RawAnswer | None:
    """The answer to another request on the connection; None if the first one said that it closes."""
    if first.headers.get("connection") == "close":
        return None  # in ten seconds at most, in which a client may still send the rest
    writer.write(NEXT)
    return await read_answer(reader)


@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("sent", [None, 10], ids=["complete", "incomplete"])
@pytest.mark.parametrize(
    ("status", "options", "change"),
    [
        (401, {"api_key": "k"}, {}),
        (404, {}, {"path": "/v1/nothing"}),
        (405, {}, {"path": "/v1/models"}),
        (413, {"max_body_bytes": 9}, {}),
        (415, {}, {"headers": "Content-Type: text/plain"}),
        (415, {}, {"headers": "Content-Encoding: gzip"}),
        (417, {}, {"headers": "Expect: tea"}),
    ],
    ids=str,
)
async def test_a_refusal_by_the_headers(serve: Serve, status: int, options: Any, change: Any, sent: Any, body: bytes):
    reader, writer = await connect(await serve(**options), request(body, sent=sent, **change))
    answer = await read_answer(reader)
    assert answer.status == status
    after = await next_answer(reader, writer, answer)
    assert after is None or after.status == 200
    writer.close()


@pytest.mark.parametrize(
    "body", [b"{" * 100, b'{"prompt": "a", "n": "x"}', LARGE[:-2] + b"]"], ids=["no JSON", "n", "large"]
)
async def test_a_refusal_by_the_body(serve: Serve, body: bytes):
    reader, writer = await connect(await serve(), request(body))
    answer = await read_answer(reader)
    assert answer.status == 400
    after = await next_answer(reader, writer, answer)
    assert after is not None
    assert after.status == 200
    writer.close()


async def test_a_full_server(serve: Serve):
    served = await serve(max_open_requests=1)
    served.engine.gate.clear()
    _, writer = await connect(served, request(b'{"prompt": "a", "stream": true}'))
    async with asyncio.timeout(30):
        while not served.engine.submitted:
            await asyncio.sleep(0.01)
    other, its_writer = await connect(served, request(SMALL))
    answer = await read_answer(other)
    assert answer.status == 429
    after = await next_answer(other, its_writer, answer)
    assert after is not None
    assert after.status == 200
    served.engine.gate.set()
    for each in (writer, its_writer):
        each.close()


async def test_a_complete_body_for_which_there_is_no_memory(serve: Serve):
    """The connection was paused for good: the next request on it got no answer before its client gave up."""
    served = await serve(max_body_bytes=250_000, max_pending_body_bytes=500_000, body_workers=1)
    assert (await served.post("/v1/completions", {"prompt": "a", "user": "x" * 200_000})).status == 200
    (pid,) = worker_pids()
    os.kill(pid, signal.SIGSTOP)
    try:
        connections = [await connect(served, request(LARGE)) for _ in range(4)]
        first = {asyncio.create_task(read_answer(reader)): (reader, writer) for reader, writer in connections}
        refused, waiting = await _until_only_one_waits(first)
        for answer, (reader, writer) in refused:
            assert answer.status == 503
            after = await next_answer(reader, writer, answer)
            assert after is not None
            assert after.status == 200
    finally:
        os.kill(pid, signal.SIGCONT)
    for task in waiting:
        assert (await task).status == 200
    for _, writer in connections:
        writer.close()


async def _until_only_one_waits(tasks: dict[asyncio.Task[RawAnswer], Any]) -> tuple[list[Any], set[Any]]:
    """Of bodies of which one fits into the memory for waiting ones: the answers to the others, and who waits."""
    waiting, refused = set(tasks), []
    while len(waiting) > 1:
        done, waiting = await asyncio.wait(waiting, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert done
        refused += [(task.result(), tasks[task]) for task in done]
    return refused, waiting
