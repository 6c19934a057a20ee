"""A LocalEngineClient over a simulated device that a test holds up, or lets fail or die."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from jaxinfer.engine.client.local import LocalEngineClient
from jaxinfer.engine.core import EngineCore
from tests.engine.faulty import FaultyRunner
from tests.engine.small import small_core, small_shapes


class Gate(FaultyRunner):
    """Steps are collected while the gate is open. held: one waits at it. dead: what a reset of the device raises."""

    def __init__(self) -> None:
        super().__init__(small_shapes())
        self.open = threading.Event()
        self.open.set()
        self.held = False
        self.dead: BaseException | None = None
        self.closed = False

    def collect(self, handle: Any):
        self.held = not self.open.is_set()
        self.open.wait(30)
        self.held = False
        return super().collect(handle)

    def reset(self) -> None:
        if self.dead is not None:
            raise self.dead
        super().reset()

    def close(self) -> None:
        self.closed = True
        super().close()


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[LocalEngineClient, EngineCore, Gate]]:
    gate = Gate()
    core = small_core(gate, **{"ahead": 1, **options})
    client = LocalEngineClient(core)
    try:
        yield client, core, gate
    finally:
        gate.open.set()
        await client.close()
