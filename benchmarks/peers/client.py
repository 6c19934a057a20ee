"""The client, the same for every engine: streamed completions over OpenAI's API, a set number at once."""

import asyncio
import json
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import aiohttp

from benchmarks.peers.cases import Ask


class Answer(NamedTuple):
    """One request: seconds to its first event and to its last token, tokens made."""

    first: float
    last: float
    tokens: int


async def run_asks(url: str, model: str, asks: Sequence[Ask], at_once: int) -> dict[str, float]:
    """Asks everything, `at_once` in flight. Raises RuntimeError where an answer has not the length asked for."""
    queue = list(reversed(asks))
    answers: list[Answer] = []

    async def worker(session: aiohttp.ClientSession) -> None:
        while queue:
            answers.append(await _ask(session, url, model, queue.pop()))

    timeout = aiohttp.ClientTimeout(total=900)
    # A connection a request: llama.cpp's server closes one after some requests, whatever is on its way.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(worker(session))
        seconds = time.perf_counter() - start
    tokens = sum(answer.tokens for answer in answers)
    between = [(answer.last - answer.first) / (answer.tokens - 1) for answer in answers if answer.tokens > 1]
    return {
        "output_tokens": tokens,
        "output_tokens_per_s": round(tokens / seconds, 2),
        "seconds": round(seconds, 3),
        "ttft_ms": round(1e3 * median(answer.first for answer in answers), 1),
        "itl_ms": round(1e3 * median(between), 2),
    }


async def _ask(session: aiohttp.ClientSession, url: str, model: str, ask: Ask) -> Answer:
    body = {
        "model": model,
        "prompt": ask.prompt,
        "max_tokens": ask.output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start = time.perf_counter()
    first = last = 0.0
    usage: dict[str, Any] = {}
    async with session.post(f"{url}/v1/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"{url} answered {response.status}: {(await response.text())[:500]}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            if event.get("choices"):
                last = time.perf_counter() - start
                first = first or last
    if usage.get("completion_tokens") != ask.output:
        raise RuntimeError(f"{url} made {usage.get('completion_tokens')} tokens where {ask.output} were asked for")
    return Answer(first, last, ask.output)
