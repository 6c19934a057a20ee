"""Supervisor: starts an engine and its API processes, starts again what dies or stalls, and ends all in order."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from jaxinfer.config import EngineConfig
from jaxinfer.errors import JaxinferError
from jaxinfer.metrics.counts import Restarts, SharedCounts
from jaxinfer.metrics.requests import NUM_VALUES
from jaxinfer.processes.adopted import reap_adopted
from jaxinfer.processes.child import pack_settings
from jaxinfer.processes.folder import server_folder
from jaxinfer.processes.running import RunningChild
from jaxinfer.serving.config import ServerConfig
from jaxinfer.signals import ENDING, FROM_PARENT, show_cursor

log = logging.getLogger(__name__)

ENGINE = (sys.executable, "-P", "-m", "jaxinfer.processes.engine")
FOLLOWER = (sys.executable, "-P", "-m", "jaxinfer.processes.follower")
API = (sys.executable, "-P", "-m", "jaxinfer.processes.api")

RETURN_MEMORY = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "4194304"}
"""Has glibc give back what large bodies took: by default it keeps hundreds of megabytes for the next ones."""

_IN_ORDER = "status 0"

RESTARTS_SECONDS = 600.0
"""The time over which restarts are counted."""

_MOST_DELAY = 30.0
_END_SECONDS = 5.0
_LEADER_END_SECONDS = 15.0
"""A step that is under way ends before other hosts are told."""


class Supervisor:
    """The processes of one server. sockets: they listen, one for each API process, which may be started again; closed
    when the server is to end, so that from then on connections are refused.

    announce is called once all are ready, with what the first API process has to say. follows: this host follows
    another, by a follower in the engine's place and without API processes; announce is called each time it is ready.
    on_end is called when the engine has ended.
    """

    def __init__(
        self,
        config: EngineConfig,
        options: ServerConfig,
        sockets: Sequence[socket.socket],
        announce: Callable[[str], None],
        *,
        follows: bool = False,
        on_end: Callable[[], None] = lambda: None,
    ):
        self._options = options
        self._sockets = sockets
        self._announce = announce
        self._follows = follows
        self._on_end = on_end
        self._engine_seconds = _END_SECONDS if config.hosts.coordinator is None else _LEADER_END_SECONDS
        self._engine: RunningChild | None = None
        self._workers: dict[int, RunningChild] = {}
        self._stopping = asyncio.Event()
        self._signals: list[signal.Signals] = []
        self._said: dict[int, str] = {}
        self._counts = SharedCounts.create(len(sockets), NUM_VALUES)
        shared = {"descriptor": self._counts.descriptor, "rows": len(sockets), "size": NUM_VALUES}
        self._settings = {**pack_settings(config, options), "counts": shared}

    async def run(self) -> int:
        """Serves until a signal, or until something dies too often; the exit status.

        0 after a signal, a shell's where a second one or one before readiness ended it, 1 where the engine or an API
        process was not to be kept alive. Raises ParameterError or ModelError where they cannot begin.
        """
        for number in ENDING:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, signal.Signals(number))
        if os.getpid() == 1:  # of a container: what API processes leave behind becomes ours
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGCHLD, lambda: reap_adopted({child.pid for child in self._children()})
            )
        with server_folder() as folder:
            self._settings["folder"] = str(folder)
            address = self._options.engine_address or f"unix:{folder / 'engine'}"
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
        """Returns an exit status once the engine has died too often, or before it was ever ready."""

        async def start() -> RunningChild:
            command = FOLLOWER if self._follows else ENGINE
            self._engine = await self._start(command, {**self._settings, "address": address})
            return self._engine

        def on_ready(said: str) -> None:
            if self._follows:
                self._announce(said)

        return await self._keep("engine", "the engine's process", start, on_ready)

    async def _keep_worker(self, index: int, address: str) -> int:
        """Returns an exit status once an API process has died too often, or before it was ever ready."""
        bound = self._sockets[index].fileno()
        settings = {**self._settings, "address": address, "index": index, "socket": bound}

        async def start() -> RunningChild:
            again = {**settings, "again": index in self._said}
            self._workers[index] = await self._start(API, again, [bound, self._counts.descriptor], RETURN_MEMORY)
            return self._workers[index]

        return await self._keep("api", "an API process", start, lambda said: self._note_ready(index, said))

    async def _start(
        self,
        command: Sequence[str],
        settings: dict[str, Any],
        files: Sequence[int] = (),
        variables: Mapping[str, str] | None = None,
    ) -> RunningChild:
        silence = self._options.silence_seconds
        return await RunningChild.start(command, settings, files, silence_seconds=silence, variables=variables)

    async def _keep(
        self, kind: str, what: str, start: Callable[[], Awaitable[RunningChild]], on_ready: Callable[[str], None]
    ) -> int:
        """Starts a child again at once where it had been ready, and after growing delays where it had not."""
        budget, failures, served = _Budget(self._options.max_restarts), 0, False

        def note_ready(said: str) -> None:
            nonlocal served, failures
            served, failures = True, 0
            on_ready(said)

        while True:
            failures += 1  # until it is ready
            try:
                end = await _run_child(what, start, note_ready)
            except JaxinferError as error:
                if not served:
                    raise
                end = f"an error: {error}"
            if kind == "engine":
                self._on_end()
            if self._stopping.is_set() or (end == _IN_ORDER and self._follows):
                return 0  # host 0 has ended, and its hosts with it
            if not served or not budget.take():
                why = "too often to start it again" if served else "before it was ready"
                log.error("%s ended with %s, %s", what, end, why)
                return 1
            log.error("%s ended with %s; it is started again", what, end)
            self._counts.restarts[Restarts._fields.index(kind)] += 1
            with contextlib.suppress(TimeoutError):
                delay = min(2.0 ** (failures - 1), _MOST_DELAY) if failures else 0.0
                await asyncio.wait_for(self._stopping.wait(), delay)
                return 0

    def _note_ready(self, index: int, said: str) -> None:
        known = len(self._said)
        self._said[index] = said
        if known < len(self._said) == len(self._sockets):
            self._announce(self._said[0])

    # Ending

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals.append(number)
        self._stopping.set()
        for bound in self._sockets:
            bound.close()
        # A third one waits for nobody.
        for worker in self._workers.values():
            worker.send(FROM_PARENT if len(self._signals) < 3 else signal.SIGKILL)

    async def _end_in_order(self) -> int:
        """API processes let their requests end first: the engine is theirs until then. Who does not end is killed."""
        if len(self._said) < len(self._sockets):
            return 128 + self._signals[0]
        ends = asyncio.gather(*(worker.wait() for worker in self._workers.values()))
        await _within(self._options.drain_seconds + _END_SECONDS, ends, "an API process")
        if self._engine is not None:
            self._engine.send(FROM_PARENT)
            await _within(self._engine_seconds, self._engine.wait(), "the engine's process")
        return 128 + self._signals[1] if len(self._signals) > 1 else 0

    async def _kill_all(self, tasks: Sequence[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for child in self._children():
            child.send(signal.SIGKILL)
        await asyncio.gather(*(_within(_END_SECONDS, child.wait(), _killed(child)) for child in self._children()))
        if len(self._said) < len(self._sockets):
            show_cursor()

    def _children(self) -> list[RunningChild]:
        return [child for child in (self._engine, *self._workers.values()) if child is not None]


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


async def _run_child(what: str, start: Callable[[], Awaitable[RunningChild]], on_ready: Callable[[str], None]) -> str:
    """Runs a child to its end; the end in words. Raises JaxinferError where it cannot begin."""
    try:
        child = await start()
    except OSError as error:  # no more processes, descriptors or memory
        raise JaxinferError(f"{what} cannot be started: {error.strerror}") from error
    watching = asyncio.create_task(_end_when_stalled(child, what))
    try:
        said = await child.ready()
        if said is not None:
            on_ready(said)
        return _in_words(await child.wait())
    except JaxinferError:
        await child.wait()
        raise
    finally:
        watching.cancel()


async def _end_when_stalled(child: RunningChild, what: str) -> None:
    await child.stalled()
    log.error("%s, pid %d, has stalled; it is ended. Stacks of its threads:", what, child.pid)
    await child.end_stalled()


async def _within(seconds: float, end: Awaitable[Any], what: str) -> None:
    try:
        await asyncio.wait_for(end, seconds)
    except TimeoutError:
        log.warning("%s did not end within %g s", what, seconds)


def _killed(child: RunningChild) -> str:
    return f"process {child.pid}, which was killed,"


def _in_words(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
