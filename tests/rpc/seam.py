"""An engine behind a socket, and a client of it, in one event loop."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from jaxinfer.engine.core import EngineCore
from jaxinfer.rpc.engine_client import RemoteEngineClient
from jaxinfer.rpc.engine_server import EngineServer


@asynccontextmanager
async def engine_at(core: EngineCore, address: str, key: str | None = None) -> AsyncIterator[EngineServer]:
    server = EngineServer(core, key=key)
    await server.start(address)
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def attached(
    address: str, key: str | None = None, silence_seconds: float = 6.0
) -> AsyncIterator[RemoteEngineClient]:
    client = RemoteEngineClient(address, key=key, silence_seconds=silence_seconds)
    try:
        async with asyncio.timeout(30):
            await client.wait_ready()
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def seam(core: EngineCore, silence_seconds: float = 6.0) -> AsyncIterator[RemoteEngineClient]:
    """A client of `core`."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{Path(folder) / 'engine'}"
        async with engine_at(core, address), attached(address, None, silence_seconds) as client:
            yield client
