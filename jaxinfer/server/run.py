"""Runs the server: socket, signals, and an orderly end."""

import asyncio
import contextlib
import dataclasses
import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Protocol

from aiohttp import web

from jaxinfer.engine.client.base import EngineClient
from jaxinfer.errors import EngineDeadError, ParameterError
from jaxinfer.metrics import SharedCounts
from jaxinfer.server.app import make_app
from jaxinfer.server.context import CONTEXT
from jaxinfer.server.protocol import HttpRunner
from jaxinfer.serving.config import ACCESS_LOG, ServerConfig, check_binding
from jaxinfer.serving.context import Context
from jaxinfer.signals import ENDING, end_at_once, end_at_once_on_signals
from jaxinfer.text import TextProcessor

BACKLOG = 4096
"""Connections that may wait to be accepted; with the usual 128 a burst of 200 costs a client a second."""

_WATCH_SECONDS = 0.5
_LAST_WORDS_SECONDS = 2.0


class Beside(Protocol):
    """A server of the same engine that runs alongside HTTP."""

    async def start(self, context: Context) -> None:
        """Serves until `stop`. Raises ParameterError where it cannot."""
        ...

    async def stop(self, seconds: float) -> None:
        """Takes nothing new, lets requests end for so long, and then ends them."""
        ...


def bind_sockets(options: ServerConfig) -> list[socket.socket]:
    """A socket for each of `api_workers` processes, all on one port. Raises ParameterError as `bind_socket` does."""
    first = bind_socket(options)
    if options.api_workers == 1:
        return [first]
    # Whether others use the port is known now; from here on our own share it, and the kernel spreads connections.
    shared = dataclasses.replace(options, port=first.getsockname()[1])
    first.close()
    return [bind_socket(shared, share=True) for _ in range(options.api_workers)]


def bind_socket(options: ServerConfig, *, share: bool = False) -> socket.socket:
    """A socket bound to the address, before a model is loaded. Raises ParameterError where that cannot be.

    share: others of this user that do the same may bind it too.
    """
    reuse = [socket.SO_REUSEADDR, *([socket.SO_REUSEPORT] if share else [])]
    return _bind(options, options.port, "port", reuse)


def hold_grpc_port(options: ServerConfig) -> socket.socket:
    """Keeps `grpc_port` for API processes, which gRPC gives no socket to inherit. Raises ParameterError.

    What comes back is bound and does not listen: processes of this user that share the port may, others may not.
    """
    assert options.grpc_port is not None
    with _bind(options, options.grpc_port, "grpc_port", [socket.SO_REUSEADDR]) as probe:
        port = probe.getsockname()[1]
    return _bind(options, port, "grpc_port", [socket.SO_REUSEPORT])


def _bind(options: ServerConfig, port: int, param: str, reuse: Sequence[int]) -> socket.socket:
    """param: the setting that says the port. reuse: options of the socket that let it share the address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise ParameterError("host", f"cannot resolve {options.host!r}; give an address of this machine") from None
    check_binding(options)
    bound = socket.socket(family, kind, protocol)
    try:
        for option in reuse:
            bound.setsockopt(socket.SOL_SOCKET, option, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        flag = param.replace("_", "-")
        advice = f"; choose another --{flag}, or 0 for any free one" if error.errno == errno.EADDRINUSE else ""
        raise ParameterError(param, f"cannot listen on {options.host}:{port}: {error.strerror}{advice}") from None
    return bound


async def start(
    client: EngineClient,
    text: TextProcessor,
    options: ServerConfig,
    bound: socket.socket,
    shared: SharedCounts | None = None,
) -> web.AppRunner:
    """Starts to serve on a bound socket. `cleanup` of what comes back lets requests end, then closes."""
    runner = HttpRunner(
        make_app(client, text, options, shared),
        options,
        keepalive_timeout=options.keepalive_timeout,
        handler_cancellation=True,
        access_log=logging.getLogger(ACCESS_LOG) if options.access_log else None,
        access_log_format='%a "%r" %s %b %Tfs',
        shutdown_timeout=options.drain_seconds + _LAST_WORDS_SECONDS,
        max_line_size=options.max_header_bytes,
        max_field_size=options.max_header_bytes,
        auto_decompress=False,
    )
    await runner.setup()
    await web.SockSite(runner, bound, backlog=BACKLOG).start()
    return runner


async def serve(
    client: EngineClient,
    text: TextProcessor,
    options: ServerConfig,
    bound: socket.socket,
    on_ready: Callable[[str], None],
    on_stop: Callable[[int], None] | None = None,
    beside: Beside | None = None,
    shared: SharedCounts | None = None,
    ending: Sequence[signal.Signals] = ENDING,
) -> int:
    """Serves until one of `ending`, or until the engine is lost. Requests may then go on for `drain_seconds`.

    A second signal aborts them, and ends the process when their clients are told, or after two seconds; a third at
    once. on_ready is called with the server's URL; on_stop, after a signal, with the number of generations that are
    not done. beside: starts and ends with HTTP. shared: where requests are counted together with other processes. The
    exit status: 0 after a signal, a shell's for the second one, 1 where the engine was lost.
    """
    with _signals(ending) as signals:
        runner = await start(client, text, options, bound, shared)
        try:
            if beside is not None:
                await beside.start(runner.app[CONTEXT])
            on_ready(url_of(bound))
            while not client.lost and not signals.stop.is_set():
                await _wait(signals.stop)
            status = 0 if signals.stop.is_set() else 1
            if signals.stop.is_set() and on_stop is not None:
                on_stop(open_generations(client))
        finally:
            await _drain(runner, beside, options, client, signals.hurry)
            await asyncio.to_thread(text.close)
        return status if signals.last is None else 128 + signals.last


def url_of(bound: socket.socket) -> str:
    """Return the URL at which a client finds the server."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Signals:
    """stop: the first signal has come. hurry: the second, `last`, and the process ends soon whatever it is at."""

    def __init__(self) -> None:
        self.stop, self.hurry = asyncio.Event(), asyncio.Event()
        self.last: int | None = None
        self._loop = asyncio.get_running_loop()
        self._came = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Runs whatever the event loop is at. The same for all signals: who changes handlers may miss one, or die."""
        if not self._came:
            self._came = True
            self._loop.call_soon_threadsafe(self.stop.set)
            return
        end_at_once_on_signals()
        self.last = number
        ending = threading.Timer(_LAST_WORDS_SECONDS, end_at_once, [number])
        ending.daemon = True
        ending.start()
        self._loop.call_soon_threadsafe(self.hurry.set)


@contextlib.contextmanager
def _signals(ending: Sequence[signal.Signals]) -> Iterator[_Signals]:
    """Handles signals; puts back what handled them before."""
    signals = _Signals()
    before = {number: signal.signal(number, signals.handle) for number in ending}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def open_generations(client: EngineClient) -> int:
    """Requests of all API processes that run or wait; none where the engine is lost."""
    try:
        stats = client.stats()
    except EngineDeadError:
        return 0
    return stats.scheduler.running + stats.scheduler.waiting


async def _stop(runner: web.AppRunner, beside: Beside | None, options: ServerConfig) -> None:
    """Returns when the last request has ended."""
    others = [] if beside is None else [beside.stop(options.drain_seconds + _LAST_WORDS_SECONDS)]
    await asyncio.gather(runner.cleanup(), *others)


async def _drain(
    runner: web.AppRunner,
    beside: Beside | None,
    options: ServerConfig,
    client: EngineClient,
    hurry: asyncio.Event,
) -> None:
    """Lets requests end; those that have not when the time is up or at `hurry` are aborted, and their clients told. Who
    does not read that is cut off."""
    cleanup = asyncio.create_task(_stop(runner, beside, options))
    hurried = asyncio.create_task(hurry.wait())
    await asyncio.wait([cleanup, hurried], timeout=options.drain_seconds, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    await client.close()
    await asyncio.wait([cleanup], timeout=_LAST_WORDS_SECONDS)
    if runner.server is not None:
        for connection in runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()
    await cleanup


async def _wait(stop: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(stop.wait(), _WATCH_SECONDS)
    except TimeoutError:
        return
