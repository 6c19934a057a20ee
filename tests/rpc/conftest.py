"""A gRPC server of this process, before a FakeEngine."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.rpc.public import Public, Serve, public
from tests.text.folders import byte_level_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_level_folder(tmp_path / "model")


@pytest.fixture
async def serve(folder: Path) -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def make(engine: Any = None, **options: Any) -> Public:
            return await stack.enter_async_context(public(folder, engine, **options))

        yield make
