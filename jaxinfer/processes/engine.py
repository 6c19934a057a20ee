"""The engine's process: weights, scheduler and device, behind the seam of rpc/wire.py."""

import asyncio
import contextlib
import logging
import os
import re
import signal
from collections.abc import Callable, Sequence

from jaxinfer.console.log import start_log
from jaxinfer.console.progress import build_progress
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.stats.log import log_stats
from jaxinfer.errors import JaxinferError
from jaxinfer.processes.child import Parent, run_to_end
from jaxinfer.processes.garbage import forget_garbage, short_collections
from jaxinfer.signals import ENDING, FROM_PARENT, end_at_once_on_signals, ignore_sigterm

log = logging.getLogger(__name__)

KEY_VARIABLE = "JAXINFER_ENGINE_KEY"
"""Environment variable for the key, so that no list of processes shows it."""


def main() -> None:
    """Runs until the parent says so, until the engine fails, or until the parent has gone."""
    end_at_once_on_signals()
    parent = Parent()

    def run() -> int:
        start_log(parent.server)
        from jaxinfer.build import build_engine
        from jaxinfer.processes.hosts import leading_team, timing_of

        with contextlib.ExitStack() as stack:
            with parent.beats_in_thread(), build_progress() as progress:
                team = stack.enter_context(leading_team(parent.engine, timing_of(parent.engine, parent.server)))
                built = build_engine(parent.engine, progress, team)
                forget_garbage()
            status = asyncio.run(_serve(parent, built.core))
            if status:  # other hosts must not take this for an end in order
                team.fail("its engine has stopped")
            return status

    run_to_end(parent, run)


async def _serve(parent: Parent, core: EngineCore) -> int:
    address, logs = parent.settings["address"], not parent.engine.scheduler.disable_log_stats
    ignore_sigterm()
    async with parent.beats_in_loop():
        return await serve_engine(
            core, address, on_ready=lambda at: parent.tell({"ready": at}), logs_stats=logs, ending=[FROM_PARENT]
        )


def check_key() -> None:
    """Raises JaxinferError where $JAXINFER_ENGINE_KEY holds what gRPC's metadata cannot carry."""
    key = os.environ.get(KEY_VARIABLE, "")
    if not re.fullmatch(r"[\x21-\x7e]*", key):
        raise JaxinferError(f"${KEY_VARIABLE} must have visible ASCII characters only, and no space or line's end")


async def serve_engine(
    core: EngineCore,
    address: str,
    *,
    on_ready: Callable[[str], None],
    logs_stats: bool = False,
    ending: Sequence[signal.Signals] = ENDING,
) -> int:
    """Serves an engine at `unix:PATH` or HOST:PORT; on_ready is told the address. The exit status: 1 where it failed.

    logs_stats: a line of statistics now and then while there is work. ending: signals that end it.

    The environment's JAXINFER_ENGINE_KEY, where it is set, is what API processes must bring.
    """
    from jaxinfer.rpc.engine_server import EngineServer

    server = EngineServer(core, key=os.environ.get(KEY_VARIABLE) or None)
    stop = asyncio.Event()
    for number in ending:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    on_ready(await server.start(address))
    logging_stats = asyncio.create_task(log_stats(core.stats)) if logs_stats else None
    ended = [asyncio.create_task(event.wait()) for event in (stop, server.dead)]
    async with short_collections(is_idle=lambda: not core.has_work()):
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
    if logging_stats is not None:
        logging_stats.cancel()
    if server.dead.is_set():
        return 1
    end_at_once_on_signals()  # a step that hangs must not keep the process
    await server.close()
    return 0


if __name__ == "__main__":
    main()
