"""LocalEngineClient: an engine in a thread of this process, behind the EngineClient seam."""

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.types import EngineStats, GenerateRequest, ModelInfo, TokenDelta
from jaxinfer.errors import EngineDeadError, JaxinferError, ParameterError, QueueFullError

log = logging.getLogger(__name__)

_Item = list[TokenDelta] | JaxinferError


class LocalEngineClient:
    """Owns the engine's thread; only that thread touches the core. All methods belong to one event loop at a time.

    A loop that was closed may be followed by another: what the old one left is aborted then.
    """

    def __init__(self, core: EngineCore):
        self._core = core
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._streams: dict[str, _Stream] = {}
        self._num_submitted = 0
        self._num_taken = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._dead: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="jaxinfer-engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> ModelInfo:
        return self._core.info

    @property
    def ready(self) -> bool:
        return self._dead is None and not self._closing

    def submit(self, request: GenerateRequest) -> AsyncIterator[list[TokenDelta]]:
        self._check_alive()
        self._use_loop(asyncio.get_running_loop())
        if request.request_id in self._streams:
            raise ParameterError("request_id", f"{request.request_id!r} is in use")
        self._core.check(request)
        waiting = self._core.num_waiting + self._num_submitted - self._num_taken
        if waiting >= self._core.max_waiting:
            raise QueueFullError(waiting)
        stream = self._streams[request.request_id] = _Stream(request.sampling.n)
        self._num_submitted += 1
        self._commands.put(lambda: self._add(request))
        return stream.read()

    def stop(self, request_id: str, index: int, kept_tokens: int) -> None:
        self._commands.put(lambda: self._core.stop(request_id, index, kept_tokens))

    def abort(self, request_id: str) -> None:
        self._commands.put(lambda: self._core.abort(request_id))

    def stats(self) -> EngineStats:
        return self._core.stats()

    async def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._commands.put(self._core.abort_all)
            self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    def _check_alive(self) -> None:
        if not self.ready:
            raise EngineDeadError("the engine has stopped") from self._dead

    def _use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is self._loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("the engine is in use by another event loop, which is not closed")
        self._loop = loop
        left = list(self._streams)
        if left:
            self._commands.put(lambda: self._abandon(left))

    # In the engine's thread

    def _run(self) -> None:
        try:
            while self._run_commands():
                if self._core.has_work():
                    self._send(self._core.step())
            while self._core.has_work():
                self._send(self._core.step())
            self._core.close()
        except BaseException as error:
            log.exception("the engine has stopped")
            self._dead = error
            self._tell(self._fail)
            self._close_core()

    def _close_core(self) -> None:
        """Frees what a broken device still holds, where it can."""
        try:
            self._core.close()
        except Exception:
            log.exception("the device could not be closed")

    def _run_commands(self) -> bool:
        """Runs what is queued, waiting for the first where there is no work. False once the client closes."""
        while True:
            try:
                command = self._commands.get(block=not self._core.has_work())
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _add(self, request: GenerateRequest) -> None:
        # An id that ended a moment ago is taken until its last result in flight is read.
        while self._core.is_retiring(request.request_id):
            self._send(self._core.step())
        try:
            self._core.add_request(request)
        except JaxinferError as error:
            self._tell(self._deliver_error, request.request_id, error)
        except Exception as error:  # whatever is wrong with one request ends no other
            log.exception("request %s could not be queued", request.request_id)
            failure = JaxinferError(f"the request could not be queued: {type(error).__name__}")
            self._tell(self._deliver_error, request.request_id, failure)
        self._num_taken += 1

    def _abandon(self, request_ids: list[str]) -> None:
        """Ends requests whose event loop was closed, and forgets those that had ended unheard."""
        for request_id in request_ids:
            self._core.abort(request_id)
        self._send(self._core.step())
        self._tell(self._forget, request_ids)

    def _send(self, deltas: list[TokenDelta]) -> None:
        if deltas:
            self._tell(self._deliver, deltas)

    def _tell(self, function: Callable[..., None], *arguments: Any) -> None:
        """Runs `function` in the event loop: one wake-up a step, however many requests it serves."""
        if self._loop is not None:
            # A closed loop has no reader left to tell.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function, *arguments)

    # In the event loop

    def _deliver(self, deltas: list[TokenDelta]) -> None:
        by_request: dict[str, list[TokenDelta]] = {}
        for delta in deltas:
            by_request.setdefault(delta.request_id, []).append(delta)
        for request_id, own in by_request.items():
            stream = self._streams.get(request_id)
            if stream is not None and stream.put(own):
                del self._streams[request_id]

    def _deliver_error(self, request_id: str, error: JaxinferError) -> None:
        self._streams.pop(request_id).fail(error)

    def _forget(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._streams.pop(request_id, None)

    def _fail(self) -> None:
        for stream in self._streams.values():
            stream.fail(EngineDeadError("the engine has stopped"))
        self._streams.clear()


class _Stream:
    """What has come for one request and was not read yet."""

    def __init__(self, choices: int):
        self._items: asyncio.Queue[_Item] = asyncio.Queue()
        self._open = choices
        self._unread = choices

    def put(self, deltas: list[TokenDelta]) -> bool:
        """True once every choice has ended."""
        self._items.put_nowait(deltas)
        self._open -= _ended(deltas)
        return self._open == 0

    def fail(self, error: JaxinferError) -> None:
        self._items.put_nowait(error)

    async def read(self) -> AsyncIterator[list[TokenDelta]]:
        while self._unread:
            item = await self._items.get()
            if isinstance(item, JaxinferError):
                raise item
            self._unread -= _ended(item)
            yield item


def _ended(deltas: list[TokenDelta]) -> int:
    return sum(delta.finish_reason is not None for delta in deltas)
