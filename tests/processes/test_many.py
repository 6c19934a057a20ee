"""Four thousand requests that end in every way: each ends rightly, blocks come back, and memory does not grow."""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from tests.llm.simulated import right_tokens
from tests.processes.serving import Serving, serving
from tests.text.folders import byte_level_folder

REQUESTS, AT_ONCE = 4000, 128
SPREAD = {"engine": 4 << 20, "api": 14 << 20}
"""Bytes that a process may grow by. An API process keeps the cycles of requests that were open during a long garbage
collection until they are as many objects as all others (see processes/garbage.py)."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_level_folder(tmp_path / "model")


async def one(server: Serving, number: int, rng: random.Random) -> str:
    """A request that ends by itself, by a stop token, or because its client goes: in mid-stream, or without reading."""
    prompt, count = [rng.randrange(200) for _ in range(rng.randint(1, 16))], rng.randint(1, 40)
    right, way = right_tokens(prompt, count, seed=1), rng.choice(["end", "end", "stop", "leave", "vanish", "whole"])
    if way == "stop":
        stop = rng.choice(right)
        answer = await server.stream(prompt=prompt, max_tokens=count, stop_token_ids=[stop])
        assert answer == (right[: right.index(stop) + 1], "[DONE]")
    elif way == "end":
        assert await server.stream(prompt=prompt, max_tokens=count) == (right, "[DONE]")
    elif way == "whole":
        body = {"prompt": prompt, "max_tokens": count, "seed": 1, "ignore_eos": True, "return_token_ids": True}
        async with server.session.post(server.url + "/v1/completions", json=body) as response:
            assert (await response.json())["choices"][0]["token_ids"] == right
    else:
        await leave(server, prompt, way == "leave")
    return way


async def leave(server: Serving, prompt: list[int], reads: bool) -> None:
    body = json.dumps({"prompt": prompt, "max_tokens": 45, "seed": 1, "ignore_eos": True, "stream": True})
    place = server.url.removeprefix("http://")
    reader, writer = await asyncio.open_connection(*place.split(":"))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {place}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    if reads:
        await reader.readline()
    writer.transport.abort()


@pytest.mark.long
async def test_four_thousand_requests(folder: Path) -> None:
    async with serving(folder, "--max-num-seqs", "32") as server:
        # Caches and pools of both processes are as large as they will be after some requests.
        ways, memory = Counter[str](), {"engine": [], "api": []}
        numbers = iter(range(REQUESTS))

        async def client(seed: int) -> None:
            rng = random.Random(seed)
            for number in numbers:
                async with asyncio.timeout(60):
                    ways[await one(server, number, rng)] += 1
                if number % 20 == 0:
                    for kind, sizes in memory.items():
                        sizes.append(server.child(kind).memory_info().rss)

        await asyncio.gather(*(client(i) for i in range(AT_ONCE)))
        async with asyncio.timeout(20):
            while await server.metric("vllm:num_requests_running") + await server.metric("vllm:num_requests_waiting"):
                await asyncio.sleep(0.05)
        assert await server.metric("vllm:kv_cache_usage_perc") == 0
        assert sum(ways.values()) == REQUESTS
        for kind, sizes in memory.items():
            quarter = len(sizes) // 4
            first, last = median(sizes[:quarter]), median(sizes[-quarter:])
            print(f"{kind}: {first / 2**20:.1f} MiB in the first quarter, {last / 2**20:.1f} in the last")
            assert last < first + SPREAD[kind], kind
        print(dict(ways))
