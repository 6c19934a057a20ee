"""Streams of an engine client, read with a limit of time."""

import asyncio
from collections.abc import AsyncIterator, Callable

from jaxinfer.engine.types import TokenDelta


async def read(stream: AsyncIterator[list[TokenDelta]]) -> list[TokenDelta]:
    async with asyncio.timeout(30):
        return [delta async for deltas in stream for delta in deltas]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)
