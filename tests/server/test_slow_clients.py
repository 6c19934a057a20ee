"""Clients that are slow to send: time limits, places and memory."""

import asyncio
import resource
from collections.abc import Iterator

import pytest

from jaxinfer.server import protocol
from jaxinfer.serving.file_limit import most_connections, raise_file_limit
from tests.server.conftest import Served
from tests.server.raw_http import POST, connect, is_error, read_answer

HALF = POST + b"Content-Length: 1000000\r\n\r\n{"


async def test_headers_must_come_in_time(serve) -> None:
    served: Served = await serve(client_header_timeout=0.2)
    reader, _ = await connect(served, b"GET /healthz HTTP/1.1\r\nHo")
    answer = await read_answer(reader)
    assert is_error(answer, 408), answer
    assert answer.body["error"]["code"] == "header_timeout"
    assert await reader.read() == b""


async def test_headers_of_a_later_request_must_come_in_time(serve) -> None:
    served: Served = await serve(client_header_timeout=0.3)
    reader, writer = await connect(served, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await read_answer(reader)).status == 200
    await asyncio.sleep(0.6)  # a connection that is kept may be idle for longer
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await read_answer(reader)).status == 200
    writer.write(b"GET /healthz HTTP/1.1\r\nHo")
    assert is_error(await read_answer(reader), 408)


async def test_a_request_under_way_has_no_limit_of_headers(serve) -> None:
    served: Served = await serve(client_header_timeout=0.2)
    served.engine.gate.clear()
    reader, _ = await connect(served, POST + b'Content-Length: 15\r\n\r\n{"prompt": "a"}')
    await asyncio.sleep(0.6)
    served.engine.gate.set()
    assert (await read_answer(reader)).status == 200


async def test_a_body_must_go_on(serve) -> None:
    served: Served = await serve(client_body_timeout=0.2)
    reader, _ = await connect(served, HALF)
    answer = await read_answer(reader)
    assert is_error(answer, 408), answer
    assert answer.body["error"]["code"] == "body_timeout"


async def test_a_body_that_trickles_does_not_go_on_for_ever(serve) -> None:
    served: Served = await serve(client_body_timeout=1.0)
    reader, writer = await connect(served, POST + b"Content-Length: 100000\r\n\r\n")
    answer = asyncio.create_task(read_answer(reader))
    while not answer.done():
        writer.write(b" ")
        await asyncio.sleep(0.05)
    assert is_error(await answer, 408), answer
    writer.close()


async def test_a_body_that_goes_on_slowly_is_read(serve) -> None:
    served: Served = await serve(client_body_timeout=5.0)
    reader, writer = await connect(served, POST + b"Content-Length: 15\r\n\r\n")
    for byte in b'{"prompt": "a"}':
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.01)
    assert (await read_answer(reader)).status == 200


async def test_an_idle_connection_is_closed(serve) -> None:
    served: Served = await serve(keepalive_timeout=0.2)
    reader, _ = await connect(served, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await read_answer(reader)).status == 200
    async with asyncio.timeout(30):
        assert await reader.read() == b""


async def test_unfinished_bodies_take_no_places(serve) -> None:
    served: Served = await serve(max_open_requests=2)
    connections = [await connect(served, HALF) for _ in range(20)]
    assert (await served.post("/v1/completions", {"prompt": "a"})).status == 200
    for _, writer in connections:
        writer.close()


async def test_the_body_that_has_been_coming_for_longest_makes_room(serve) -> None:
    served: Served = await serve(max_body_bytes=1_000_000, max_pending_body_bytes=2_000_000)
    part = b"x" * 700_000
    stalled, kept = await connect(served, POST + b"Content-Length: 800000\r\n\r\n" + part)
    second, writer = await connect(served, POST + b'Content-Length: 800000\r\n\r\n{"prompt":"a","user":"' + part)
    await asyncio.sleep(0.3)
    third, also_kept = await connect(served, POST + b"Content-Length: 800000\r\n\r\n" + part)
    answer = await read_answer(stalled)
    assert is_error(answer, 503), answer
    assert "retry-after" in answer.headers
    writer.write(b"x" * (800_000 - 700_000 - 22 - 2) + b'"}')
    assert (await read_answer(second)).status == 200
    assert not third.at_eof()
    kept.close()
    also_kept.close()


async def test_small_bodies_need_no_room(serve) -> None:
    served: Served = await serve(max_body_bytes=300_000, max_pending_body_bytes=600_000)
    full = [await connect(served, POST + b"Content-Length: 300000\r\n\r\n" + b"x" * 299_999) for _ in range(2)]
    for _ in range(5):
        assert (await served.post("/v1/completions", {"prompt": "a"})).status == 200
    for reader, writer in full:
        assert not reader.at_eof()
        writer.close()


async def test_a_client_that_goes_gives_its_memory_back(serve) -> None:
    served: Served = await serve(max_body_bytes=900_000, max_pending_body_bytes=1_800_000)
    oldest, kept = await connect(served, POST + b"Content-Length: 900000\r\n\r\n" + b"x" * 800_000)
    for _ in range(5):
        _, writer = await connect(served, POST + b"Content-Length: 900000\r\n\r\n" + b"x" * 800_000)
        await asyncio.sleep(0.1)
        writer.close()
        await asyncio.sleep(0.1)
    reader, writer = await connect(served, POST + b"Content-Length: 800024\r\n\r\n" + b'{"prompt":"a","user":"')
    writer.write(b"x" * 800_000 + b'"}')
    assert (await read_answer(reader)).status == 200
    assert not oldest.at_eof()  # else it would have been refused
    kept.close()


@pytest.fixture
def file_limit() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_of_files_is_raised(file_limit: None) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    raise_file_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


def test_connections_leave_files_for_others(file_limit: None) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, hard))
    assert 100 < most_connections() < 500


async def test_connections_beyond_the_files_are_refused(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "most_connections", lambda: 3)
    served: Served = await serve()
    kept = [await connect(served) for _ in range(3)]
    reader, _ = await connect(served)
    answer = await read_answer(reader)
    assert is_error(answer, 503), answer
    assert answer.headers["connection"] == "close"
    assert "retry-after" in answer.headers
    for _, writer in kept:
        writer.close()
        await writer.wait_closed()
    async with asyncio.timeout(10):
        while True:  # the server takes a moment to notice
            reader, _ = await connect(served, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            if (await read_answer(reader)).status == 200:
                break
