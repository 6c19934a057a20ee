"""Supervisor: starts an engine and its API processes, starts again what dies, and ends all in order."""

import asyncio
import logging
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxinfer.config import EngineConfig
from jaxinfer.processes.child import pack_settings
from jaxinfer.processes.running import RunningChild
from jaxinfer.server.config import ServerConfig
from jaxinfer.signals import ENDING

log = logging.getLogger(__name__)

ENGINE = (sys.executable, "-m", "jaxinfer.processes.engine")
API = (sys.executable, "-m", "jaxinfer.processes.api")

RESTARTS_SECONDS = 600.0
"""The time over which restarts are counted."""

_MOST_DELAY = 30.0
_ENGINE_END_SECONDS = 5.0


class Supervisor:
    """The processes of one server. sockets: bound, one for each API process; they outlive it.

    announce is called once all are ready, with what the first API process has to say.
    """

    def __init__(
        self, config: EngineConfig, options: ServerConfig, sockets: Sequence[int], announce: Callable[[str], None]
    ):
        self._settings = pack_settings(config, options)
        self._options = options
        self._sockets = sockets
        self._announce = announce
        self._engine: RunningChild | None = None
        self._workers: dict[int, RunningChild] = {}
        self._stopping = asyncio.Event()
        self._signals: list[signal.Signals] = []
        self._said: dict[int, str] = {}

    async def run(self) -> int:
        """Serves until a signal, or until something dies too often; the exit status.

        0 after a signal, a shell's where a second one or one before readiness ended it, 1 where the engine or an API
        process was not to be kept alive. Raises ParameterError or ModelError where they cannot begin.
        """
        for number in ENDING:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, signal.Signals(number))
        with tempfile.TemporaryDirectory(prefix="jaxinfer-") as folder:
            address = self._options.engine_address or f"unix:{Path(folder) / 'engine'}"
            tasks = [asyncio.create_task(self._keep_worker(i, address)) for i in range(len(self._sockets))]
            if self._options.engine_address is None:
                tasks.append(asyncio.create_task(self._keep_engine(address)))
            stopping = asyncio.create_task(self._stopping.wait())
            try:
                done, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
                failed = [task for task in done if task is not stopping]
                if failed:
                    return failed[0].result()
                return await self._end_in_order()
            finally:
                await self._kill_all(tasks)

    # Keeping alive

    async def _keep_engine(self, address: str) -> int:
        """Returns an exit status once the engine has died too often."""
        budget = _Budget(self._options.max_restarts)
        failures, served = 0, False
        while True:
            child = self._engine = await RunningChild.start(ENGINE, {**self._settings, "address": address})
            ready = await child.ready()
            served = served or ready is not None
            failures = 0 if ready is not None else failures + 1
            status = await child.wait()
            if self._stopping.is_set():
                return 0
            if not served:
                log.error("the engine's process ended with %s before it was ready", _in_words(status))
                return 1
            if not budget.take():
                log.error("the engine's process ended with %s, too often to start it again", _in_words(status))
                return 1
            delay = min(2.0 ** (failures - 1), _MOST_DELAY) if failures else 0.0
            log.error("the engine's process ended with %s; it is started again", _in_words(status))
            await asyncio.sleep(delay)

    async def _keep_worker(self, index: int, address: str) -> int:
        """Returns an exit status once an API process has died too often."""
        budget = _Budget(self._options.max_restarts)
        settings = {**self._settings, "address": address, "index": index, "socket": self._sockets[index]}
        while True:
            child = self._workers[index] = await RunningChild.start(API, settings, [self._sockets[index]])
            said = await child.ready()
            if said is not None:
                self._note_ready(index, said)
            status = await child.wait()
            if self._stopping.is_set():
                return 0
            if not budget.take():
                log.error("an API process ended with %s, too often to start it again", _in_words(status))
                return 1
            log.error("an API process ended with %s; it is started again", _in_words(status))

    def _note_ready(self, index: int, said: str) -> None:
        known = len(self._said)
        self._said[index] = said
        if known < len(self._said) == len(self._sockets):
            self._announce(self._said[0])

    # Ending

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals.append(number)
        self._stopping.set()
        for worker in self._workers.values():
            worker.send(signal.SIGTERM)

    async def _end_in_order(self) -> int:
        """API processes let their requests end first: the engine is theirs until then."""
        if len(self._said) < len(self._sockets):
            return 128 + self._signals[0]
        await asyncio.gather(*(worker.wait() for worker in self._workers.values()))
        if self._engine is not None:
            self._engine.send(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._engine.wait(), _ENGINE_END_SECONDS)
            except TimeoutError:
                log.warning("the engine's process did not end within %g s", _ENGINE_END_SECONDS)
        return 128 + self._signals[1] if len(self._signals) > 1 else 0

    async def _kill_all(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        left = [child for child in (self._engine, *self._workers.values()) if child is not None]
        for child in left:
            child.send(signal.SIGKILL)
        await asyncio.gather(*(child.wait() for child in left))


class _Budget:
    """So many restarts within RESTARTS_SECONDS."""

    def __init__(self, most: int):
        self._most = most
        self._taken: deque[float] = deque()

    def take(self) -> bool:
        """True where there is one left."""
        now = time.monotonic()
        while self._taken and now - self._taken[0] > RESTARTS_SECONDS:
            self._taken.popleft()
        self._taken.append(now)
        return len(self._taken) <= self._most


def _in_words(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
