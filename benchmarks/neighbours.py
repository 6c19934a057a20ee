"""Measure how long one API key's large bodies wait for another's, and try connections after a refusal.

A server before a simulated engine, with two keys. `bodies`: key A sends 12 bodies of 3.9 MB, and two seconds later key
B a chat of 40 kB: the seconds until its answer. `connections`: 16 bodies of 3.9 MB come at once, and each connection
whose body was answered then asks for /healthz: what each of them saw.

    python benchmarks/neighbours.py [--json FILE] [--rounds N]
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))

import aiohttp

from benchmarks.overlap import running_server
from benchmarks.report import write_json

_TIMEOUT = 150.0
_LONG = "word " * 780_000
_SHORT = "word " * 8_000


async def post(session: aiohttp.ClientSession, url: str, key: str, body: bytes) -> int:
    """Send a chat; its status, 0 if there is no answer."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        async with session.post(url + "/v1/chat/completions", data=body, headers=headers) as response:
            await response.read()
            return response.status
    except (aiohttp.ClientError, TimeoutError):
        return 0


def chat(content: str, **more: Any) -> bytes:
    """Make the body of a short answer."""
    return json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 2, **more}).encode()


async def bodies(session: aiohttp.ClientSession, url: str) -> Any:
    """Time B's body behind A's large ones."""
    await post(session, url, "b", chat(_SHORT, truncate_prompt_tokens=100))  # a process that reads bodies has started
    long, short = chat(_LONG), chat(_SHORT, truncate_prompt_tokens=100)
    flood = [asyncio.create_task(post(session, url, "a", long)) for _ in range(12)]
    await asyncio.sleep(2.0)
    begun = time.perf_counter()
    status = await post(session, url, "b", short)
    seconds = time.perf_counter() - begun
    answers = Counter(await asyncio.gather(*flood))
    return {"status": status, "seconds": seconds, "flood": dict(answers)}


async def connections(session: aiohttp.ClientSession, url: str) -> Any:
    """Ask for /healthz on connections whose large body was answered, whatever the answer was."""
    place, data = urlsplit(url), chat(_LONG)
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: a\r\nContent-Type: application/json\r\n"
    found = await asyncio.gather(
        *(_after_refusal(place.hostname or "", place.port or 0, head, data) for _ in range(16))
    )
    return {state: found.count(state) for state in sorted(set(found))}


async def _after_refusal(host: str, port: int, head: str, data: bytes) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    with contextlib.closing(writer):
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        try:
            async with asyncio.timeout(_TIMEOUT):
                status, closes = await _answer(reader)
                if closes:
                    return f"{status}, closes"
            async with asyncio.timeout(10):
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                again, _ = await _answer(reader)
                return f"{status}, then {again}"
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            return "hangs"


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bool]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:] if line)
    await reader.readexactly(int(headers.get("content-length", "0")))
    return int(lines[0].split()[1]), headers.get("connection") == "close"


CASES: dict[str, Callable[[aiohttp.ClientSession, str], Awaitable[Any]]] = {
    "bodies": bodies,
    "connections": connections,
}


async def _run(url: str, case: str) -> Any:
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        return await CASES[case](session, url)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--rounds", type=int, default=3, help="servers that each case is tried on")
    options = parser.parse_args()
    found: dict[str, list[Any]] = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("a\nb\n")
        keys.chmod(0o600)
        for _ in range(options.rounds):
            for case, results in found.items():
                with running_server(["benchmarks.event_loop_parts.engine"], ["--api-key-file", str(keys)]) as (url, _):
                    results.append(asyncio.run(_run(url, case)))
                print(case, results[-1], flush=True)
    waits = [one["seconds"] for one in found["bodies"]]
    print(f"B waits {median(waits):.2f} s ({min(waits):.2f}-{max(waits):.2f})")
    write_json(options.json, {"rounds": found, "median_wait": median(waits)})


if __name__ == "__main__":
    main()
