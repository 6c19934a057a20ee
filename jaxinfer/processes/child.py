"""Parent: what a process of `jaxinfer serve` knows of the one that started it.

A child reads one line of JSON from its standard input, its settings, and tells what happens as lines of JSON into the
file that its first argument numbers; an empty line says that it runs. Its standard input ends when the parent does, and
then the child ends at once.
"""

import asyncio
import contextlib
import json
import logging
import os
import select
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict
from functools import cached_property
from typing import Any, NoReturn

from jaxinfer.config import EngineConfig
from jaxinfer.config_tree import with_values
from jaxinfer.engine.watchdog import dump_stacks_on_signal
from jaxinfer.errors import JaxinferError, ModelError, ParameterError, shortened
from jaxinfer.serving.api_keys import know_api_keys, read_api_keys
from jaxinfer.serving.config import ServerConfig
from jaxinfer.signals import end_process

log = logging.getLogger(__name__)

_MAX_ERROR = 4000
_ERRORS: dict[str, type[JaxinferError]] = {"model": ModelError, "other": JaxinferError}


class Parent:
    """The parent's end of the two pipes. settings: what it said first."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = json.loads(sys.stdin.readline())
        self._told = int(sys.argv[1])
        dump_stacks_on_signal()
        threading.Thread(target=self._end_with_parent, name="parent", daemon=True).start()

    @cached_property
    def engine(self) -> EngineConfig:
        """The engine's settings."""
        return with_values(EngineConfig(), self.settings["engine"])

    @cached_property
    def server(self) -> ServerConfig:
        """The server's settings."""
        options = with_values(ServerConfig(), self.settings["server"])
        if options.api_key_file is not None:
            know_api_keys(options.api_key_file, self.settings["file_keys"])
        return options

    def tell(self, message: dict[str, Any]) -> None:
        """Tells the parent something; without effect where it has gone."""
        with contextlib.suppress(OSError):
            os.write(self._told, json.dumps(message).encode() + b"\n")

    def tell_error(self, error: JaxinferError) -> None:
        """Tells why this process cannot begin."""
        self.tell({"error": pack_error(error)})

    @contextlib.asynccontextmanager
    async def beats_in_loop(self) -> AsyncIterator[None]:
        """Shows the parent that the event loop runs, as long as this is entered."""
        beating = asyncio.create_task(self._beat_in_loop())
        try:
            yield
        finally:
            beating.cancel()

    @contextlib.contextmanager
    def beats_in_thread(self) -> Iterator[None]:
        """Shows the parent that this process runs, as long as this is entered: for what blocks its main thread."""
        over = threading.Event()
        threading.Thread(target=self._beat_in_thread, args=[over], name="heartbeat", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    async def _beat_in_loop(self) -> None:
        while seconds := self.server.heartbeat_seconds:
            self._beat()
            await asyncio.sleep(seconds)

    def _beat_in_thread(self, over: threading.Event) -> None:
        seconds = self.server.heartbeat_seconds
        while seconds:
            self._beat()
            if over.wait(seconds):
                return

    def _beat(self) -> None:
        # A parent that is stopped does not read: its pipe must not fill and block us.
        writable = select.poll()  # not `select`, which takes no descriptor above 1023
        writable.register(self._told, select.POLLOUT)
        if writable.poll(0):
            with contextlib.suppress(OSError):
                os.write(self._told, b"\n")

    def _end_with_parent(self) -> None:
        # Nothing is written to standard input after the settings.
        sys.stdin.buffer.read()
        shutil.rmtree(self.settings["folder"], ignore_errors=True)
        os._exit(1)


def run_to_end(parent: Parent, run: Callable[[], int]) -> NoReturn:
    """Ends the process with what `run` returns: 2 where it cannot begin, which the parent is told, 1 where it failed.

    Python's own end would wait for the thread that reads from the parent, and abort.
    """
    try:
        status = run()
    except JaxinferError as error:
        parent.tell_error(error)
        status = 2
    except BaseException:
        log.exception("the process fails")
        status = 1
    end_process(status)


def pack_settings(engine: EngineConfig, server: ServerConfig) -> dict[str, Any]:
    """Settings as plain values; with the keys of a file, which may be another one when a process is started again."""
    keys = [] if server.api_key_file is None else read_api_keys(server.api_key_file)
    return {"engine": asdict(engine), "server": asdict(server), "file_keys": keys}


def pack_error(error: JaxinferError) -> dict[str, str]:
    """An error as plain values."""
    if isinstance(error, ParameterError):
        return {"kind": "parameter", "param": error.param, "message": shortened(error.message, _MAX_ERROR)}
    return {"kind": "model" if isinstance(error, ModelError) else "other", "message": shortened(str(error), _MAX_ERROR)}


def unpack_error(values: dict[str, str]) -> JaxinferError:
    """The error that was packed."""
    if values["kind"] == "parameter":
        return ParameterError(values["param"], values["message"])
    return _ERRORS[values["kind"]](values["message"])
