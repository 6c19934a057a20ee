"""What is no valid HTTP gets an error in OpenAI's form, and one line in the log for many."""

import logging

import pytest

from jaxinfer.server import protocol
from tests.server.conftest import Served
from tests.server.raw_http import POST, connect, is_error, read_answer, send

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"

MALFORMED = {
    "another protocol": b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
    "no version that there is": b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "no method that there is": b"FOO / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a long request line": b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a long header": GET + b"X: " + b"a" * 40_000 + b"\r\n\r\n",
    "many headers": GET + b"".join(b"X%d: 1\r\n" % i for i in range(500)) + b"\r\n",
    "a header with a zero byte": GET + b"X: a\x00b\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "a negative length": POST + b"Content-Length: -5\r\n\r\n{}",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "length and chunks": POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a wrong chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    "a wrong chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_what_is_no_http_gets_an_error_in_openais_form(serve, name: str) -> None:
    served: Served = await serve()
    answer = await send(served, MALFORMED[name])
    assert is_error(answer, 431 if name.startswith("a long") else 400), answer
    assert (await served.get("/healthz")).status == 200


async def test_a_chunk_that_is_wrong_in_mid_body_is_a_400(serve) -> None:
    served: Served = await serve()
    reader, writer = await connect(served, POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\n{  \r\n")
    await served.get("/healthz")  # the first chunk has been read by now
    writer.write(b"zz\r\nabc\r\n")
    assert is_error(await read_answer(reader), 400)
    writer.close()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (POST + b"Expect: nothing\r\nContent-Length: 2\r\n\r\n{}", 417),
        (POST + b"Expect: \xff\r\nContent-Length: 2\r\n\r\n{}", 417),
        (b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nExpect: nothing\r\nContent-Length: 2\r\n\r\n{}", 417),
        (b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"DELETE /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (POST + b"Content-Length: 999999999\r\n\r\n{", 413),
        (POST.replace(b"json", b"\xff") + b"Content-Length: 2\r\n\r\n{}", 415),
    ],
)
async def test_every_http_error_has_openais_form(serve, data: bytes, status: int) -> None:
    served: Served = await serve()
    answer = await send(served, data)
    assert is_error(answer, status), answer


async def test_expect_100_continue_is_answered(serve) -> None:
    served: Served = await serve()
    reader, writer = await connect(served, POST + b"Expect: 100-continue\r\nContent-Length: 15\r\n\r\n")
    assert (await read_answer(reader)).status == 100
    writer.write(b'{"prompt": "a"}')
    assert (await read_answer(reader)).status == 200
    writer.close()


async def test_http_1_0_has_no_interim_answers(serve) -> None:
    served: Served = await serve()
    post = POST.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Expect: 100-continue\r\nContent-Length: 15\r\n\r\n"
    reader, writer = await connect(served, post + b'{"prompt": "a"}')
    assert (await read_answer(reader)).status == 200
    writer.close()


async def test_a_client_that_leaves_before_it_is_asked_for_its_body_is_no_failure(serve, caplog) -> None:
    served: Served = await serve()
    for _ in range(5):
        _, writer = await connect(served, POST + b"Expect: 100-continue\r\nContent-Length: 15\r\n\r\n")
        writer.transport.abort()
    for _ in range(5):  # each takes many rounds of the event loop, which is the server's, too
        assert (await served.get("/healthz")).status == 200
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("data", [*MALFORMED.values(), GET + b"\r\n", b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"])
async def test_no_answer_tells_versions(serve, data: bytes) -> None:
    assert (await send(await serve(), data)).headers["server"] == "jaxinfer"


@pytest.mark.parametrize(
    ("header", "status"), [(b"Content-Length: 999999999", 413), (b"Content-Length: 9\r\nAuthorization: Bearer x", 401)]
)
async def test_a_body_is_not_asked_for_where_the_headers_are_refused(serve, header: bytes, status: int) -> None:
    served: Served = await serve(api_key="key")
    key = b"" if b"Authorization" in header else b"X-Api-Key: key\r\n"
    reader, writer = await connect(served, POST + key + b"Expect: 100-continue\r\n" + header + b"\r\n\r\n")
    answer = await read_answer(reader)
    assert is_error(answer, status), answer
    assert answer.headers["connection"] == "close"
    writer.close()


async def test_many_malformed_requests_are_one_line(serve, caplog, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(protocol.time, "monotonic", lambda: now[0])
    served: Served = await serve()
    with caplog.at_level(logging.DEBUG, logger="jaxinfer.server"), caplog.at_level(logging.INFO):
        for data in MALFORMED.values():
            await send(served, data)
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 1, lines
        now[0] += protocol.LOG_SECONDS
        await send(served, MALFORMED["no host"])
    record = caplog.records[-1]
    assert record.exc_info is None
    assert "\n" not in record.getMessage()
    assert f"({len(MALFORMED) - 1} more before it)" in record.getMessage()
