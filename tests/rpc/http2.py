"""What a gRPC call looks like on the wire: the HTTP/2 frames of its stream, by RFC 9113 and without a gRPC client."""

import asyncio
import struct
from typing import NamedTuple

DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6
"""Frame types."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_STREAM = 1


class _Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


async def call_frames(address: str, path: str, message: bytes = b"") -> list[tuple[int, bool]]:
    """Type of each DATA and HEADERS frame that a call gets, and whether the stream ends with it.

    address: HOST:PORT. path: /SERVICE/METHOD. message: the request, serialised.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        request = struct.pack(">?I", False, len(message)) + message
        writer.write(_PREFACE + _packed(_Frame(SETTINGS, 0, 0, b"")))
        writer.write(_packed(_Frame(HEADERS, _END_HEADERS, _STREAM, _header_block(path, address))))
        writer.write(_packed(_Frame(DATA, _END_STREAM, _STREAM, request)))
        async with asyncio.timeout(30):
            return await _answer(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> list[tuple[int, bool]]:
    seen: list[tuple[int, bool]] = []
    while not (seen and seen[-1][1]):
        frame = await _read(reader)
        if frame.stream == _STREAM and frame.kind in (DATA, HEADERS):
            seen.append((frame.kind, bool(frame.flags & _END_STREAM)))
        elif frame.kind in (SETTINGS, PING) and not frame.flags & _ACK:
            writer.write(_packed(_Frame(frame.kind, _ACK, 0, frame.payload if frame.kind == PING else b"")))
    return seen


async def _read(reader: asyncio.StreamReader) -> _Frame:
    head = await reader.readexactly(9)
    stream = int.from_bytes(head[5:]) & 0x7FFFFFFF
    return _Frame(head[3], head[4], stream, await reader.readexactly(int.from_bytes(head[:3])))


def _packed(frame: _Frame) -> bytes:
    head = len(frame.payload).to_bytes(3) + bytes([frame.kind, frame.flags]) + frame.stream.to_bytes(4)
    return head + frame.payload


def _header_block(path: str, authority: str) -> bytes:
    """HPACK (RFC 7541) at its plainest: every field a literal that is not indexed and not compressed."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": path, ":authority": authority,
        "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields.items())


def _text(value: str) -> bytes:
    assert len(value) < 127, "longer ones need more than a byte for their length"
    return bytes([len(value)]) + value.encode()
