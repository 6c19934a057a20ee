"""Bytes to a server and bytes back, without an HTTP client in between."""

import asyncio
import json
from typing import Any, NamedTuple

from tests.server.conftest import Served

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class RawAnswer(NamedTuple):
    """The first response to some bytes. body: decoded JSON, or None where it is no JSON."""

    status: int
    headers: dict[str, str]
    body: Any


async def connect(served: Served, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which `data` was sent."""
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    await writer.drain()
    return reader, writer


async def read_answer(reader: asyncio.StreamReader) -> RawAnswer:
    """The next response of a connection."""
    async with asyncio.timeout(30):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    is_json = headers.get("content-type", "").startswith("application/json") and body
    return RawAnswer(int(head[0].split()[1]), headers, json.loads(body) if is_json else None)


async def send(served: Served, data: bytes) -> RawAnswer:
    """The response to some bytes."""
    reader, writer = await connect(served, data)
    try:
        return await read_answer(reader)
    finally:
        writer.close()


def is_error(answer: RawAnswer, status: int) -> bool:
    """Whether a response is an error in OpenAI's form."""
    keys = {"message", "type", "param", "code"}
    return answer.status == status and answer.body is not None and set(answer.body["error"]) == keys
