"""`jaxinfer engine`: a model's engine alone, for `jaxinfer serve --engine-address` elsewhere."""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jaxinfer.cli.settings import parse_settings
from jaxinfer.console.log import start_log
from jaxinfer.console.messages import show
from jaxinfer.console.progress import build_progress
from jaxinfer.engine.watchdog import dump_stacks_on_signal
from jaxinfer.errors import ParameterError
from jaxinfer.processes.engine import KEY_VARIABLE, check_key, serve_engine
from jaxinfer.rpc.channel import check_free
from jaxinfer.serving.config import ServerConfig, check_address, is_loopback
from jaxinfer.version import __version__


@dataclass(frozen=True)
class ListenConfig:
    """Address of the engine for API processes."""

    listen: str = "127.0.0.1:7000"
    """HOST:PORT or `unix:PATH`. An address that others can reach needs a key, in $JAXINFER_ENGINE_KEY on both sides."""
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    """The least serious lines of the log on standard error."""

    def __post_init__(self) -> None:
        check_address("listen", self.listen)
        host = self.listen.rpartition(":")[0].strip("[]")
        open_to_all = not self.listen.startswith("unix:") and not is_loopback(host)
        if open_to_all and not os.environ.get(KEY_VARIABLE):
            raise ParameterError("listen", f"{host} can be reached by others; set ${KEY_VARIABLE}, or use 127.0.0.1")


def run(arguments: Sequence[str]) -> int:
    """Serves an engine until a signal; the exit status is 1 where it failed."""
    config, settings = parse_settings("engine", {"at": ListenConfig()}, arguments)
    options: ListenConfig = settings.at
    start_log(ServerConfig(log_level=options.log_level))
    dump_stacks_on_signal()
    check_free(options.listen)  # before a model is loaded
    check_key()
    from jaxinfer.build import build_engine

    with build_progress() as progress:
        core = build_engine(config, progress).core

    def announce(address: str) -> None:
        key = f"{KEY_VARIABLE}=... " if os.environ.get(KEY_VARIABLE) else ""
        show(
            f"jaxinfer {__version__} runs {core.info.name} at {address} - try:\n"
            f"  {key}jaxinfer serve {core.info.name} --engine-address {address}",
            sys.stdout,
        )

    logs = not config.scheduler.disable_log_stats
    return asyncio.run(serve_engine(core, options.listen, on_ready=announce, logs_stats=logs))
