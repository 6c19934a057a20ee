"""LocalEngineClient: an engine in a thread of this process, behind the EngineClient seam."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from jaxinfer.engine.client.streams import Streams
from jaxinfer.engine.client.thread import EngineThread
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.stats.counters import EngineStats
from jaxinfer.engine.types import GenerateRequest, ModelInfo, StepOutput, TokenDelta
from jaxinfer.errors import JaxinferError


class LocalEngineClient:
    """All methods belong to one event loop at a time.

    A loop that was closed may be followed by another: what the old one left is aborted then.
    """

    def __init__(self, core: EngineCore):
        self._streams = Streams()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client_id = 0
        self._compiling: dict[str, tuple[GenerateRequest, asyncio.Future[None]]] = {}
        self._abandoned: dict[int, list[str]] = {}
        self._engine = EngineThread(core, self)
        self._engine.start()

    @property
    def info(self) -> ModelInfo:
        return self._engine.info

    @property
    def ready(self) -> bool:
        return self._engine.alive

    @property
    def lost(self) -> bool:
        return not self._engine.alive

    async def wait_ready(self) -> None:
        """Return at once: an engine in this process that has stopped does not come back."""

    async def submit(self, request: GenerateRequest) -> AsyncIterator[list[TokenDelta]]:
        self._use_loop(asyncio.get_running_loop())
        self._streams.check_free(request.request_id)
        name = request.request_id
        compiled = asyncio.get_running_loop().create_future()
        self._compiling[name] = request, compiled
        # Opened before it can be queued: what comes of it must find it.
        stream = self._streams.open(name, request.sampling.n)
        try:
            if not self._engine.submit(request, self._client_id):
                await compiled
        except BaseException:
            self._engine.abort(name)
            self._streams.forget([name])
            raise
        finally:
            del self._compiling[name]
        return stream

    def stop(self, request_id: str, index: int) -> None:
        self._engine.stop(request_id, index)

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)

    def stats(self) -> EngineStats:
        return self._engine.stats()

    async def read_stats(self) -> EngineStats:
        return self._engine.stats()

    async def close(self) -> None:
        self._engine.close()
        await asyncio.to_thread(self._engine.join)

    def _use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is self._loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("the engine is in use by another event loop, which is not closed")
        self._loop = loop
        self._abandoned[self._client_id] = self._streams.request_ids
        self._engine.forget(self._client_id)
        self._client_id += 1

    # In the engine's thread

    def on_outputs(self, outputs: Sequence[StepOutput]) -> None:
        self._tell(self._streams.deliver, outputs)

    def on_error(self, client_id: int, request_id: str, error: JaxinferError) -> None:
        self._tell(self._streams.fail, request_id, error)

    def on_compiled(self, client_id: int, request: GenerateRequest, refused: JaxinferError | None) -> None:
        self._tell(self._end_compiling, request, refused)

    def _end_compiling(self, request: GenerateRequest, refused: JaxinferError | None) -> None:
        waiting, compiled = self._compiling.get(request.request_id, (None, None))
        if waiting is not request or compiled is None or compiled.done():
            return
        if refused is None:
            compiled.set_result(None)
        else:
            compiled.set_exception(refused)

    def on_forgotten(self, client_id: int) -> None:
        self._tell(self._streams.forget, self._abandoned.pop(client_id))

    def on_death(self) -> None:
        self._tell(self._streams.fail_all, "the engine has stopped")

    def _tell(self, function: Callable[..., None], *arguments: Any) -> None:
        """Runs `function` in the event loop: one wake-up a step, however many requests it serves."""
        if self._loop is not None:
            # A closed loop has no reader left to tell.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, *arguments)
