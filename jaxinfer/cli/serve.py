"""`jaxinfer serve`: a model behind OpenAI's API."""

import asyncio
import contextlib
import dataclasses
import logging
import os
import socket
import sys
from collections.abc import Sequence

from jaxinfer.checkpoint.source import check_name
from jaxinfer.cli.settings import parse_settings
from jaxinfer.config import EngineConfig
from jaxinfer.config_tree import differences
from jaxinfer.console.log import start_log
from jaxinfer.console.messages import show
from jaxinfer.errors import ParameterError
from jaxinfer.parallel.asked_mesh import served_mesh
from jaxinfer.serving.config import ServerConfig
from jaxinfer.serving.file_limit import raise_file_limit

log = logging.getLogger("jaxinfer.server")

_TEXT_SETTINGS = ("model", "tokenizer", "revision", "chat_template", "default_chat_template_kwargs")
"""Engine settings that API processes need, too."""


def run(arguments: Sequence[str]) -> int:
    """Serves until a signal; the exit status is 1 where the engine died too often."""
    config, settings = parse_settings("serve", {"server": ServerConfig()}, arguments)
    # `--help` and refused flags end above: they need not wait for a server's imports, three quarters of a second.
    from jaxinfer.engine.watchdog import dump_stacks_on_signal
    from jaxinfer.processes.engine import check_key
    from jaxinfer.processes.following import serve_follower
    from jaxinfer.processes.hosts import place_of
    from jaxinfer.server.run import BACKLOG, bind_sockets, hold_grpc_port

    options: ServerConfig = settings.server
    from_environment = os.environ.get("JAXINFER_API_KEY") or None
    if options.api_key is None:
        options = dataclasses.replace(options, api_key=from_environment)
    if options.engine_address is not None:
        _refuse_engine_settings(config)
    else:
        check_name(config.model, config.load.revision)
    place = place_of(config)
    served_mesh(config.parallel, 1 if place is None else place.num_hosts)  # told before a process is started
    start_log(options)
    if from_environment not in (None, options.api_key):
        log.warning("--api-key takes the place of JAXINFER_API_KEY, whose key is not accepted")
    dump_stacks_on_signal()
    raise_file_limit()
    check_key()
    if place is not None and not place.leads:
        return asyncio.run(serve_follower(config, options, place))
    # The address first: a port in use is known before a model is loaded.
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(bound) for bound in bind_sockets(options)]
        for bound in sockets:
            bound.listen(BACKLOG)  # who comes before the first process is up waits for it
        if options.grpc_port is not None:  # now, so that one of our own ports is refused
            held = stack.enter_context(hold_grpc_port(options))
            options = dataclasses.replace(options, grpc_port=held.getsockname()[1])
        return asyncio.run(_serve(config, options, sockets))


def _refuse_engine_settings(config: EngineConfig) -> None:
    """Raises ParameterError for the first setting of an engine, where that engine is not this command's to make."""
    for name in differences(config, EngineConfig()):
        if name not in _TEXT_SETTINGS:
            message = "is a setting of the engine at --engine-address: give it to `jaxinfer engine` there"
            raise ParameterError(name, message)


async def _serve(config: EngineConfig, options: ServerConfig, sockets: Sequence[socket.socket]) -> int:
    from jaxinfer.processes.supervisor import Supervisor

    return await Supervisor(config, options, sockets, lambda message: show(message, sys.stdout)).run()
