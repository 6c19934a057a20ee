"""An API process: HTTP and gRPC, templates, tokens and text, before an engine in another process."""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable

from jaxinfer.build import load_text
from jaxinfer.console.log import start_log
from jaxinfer.console.messages import grpc_message, ready_message, show, stop_message
from jaxinfer.metrics import SharedCounts
from jaxinfer.processes.child import Parent, run_to_end
from jaxinfer.processes.engine import KEY_VARIABLE
from jaxinfer.processes.garbage import forget_garbage, short_collections
from jaxinfer.server.loading import answer_while_loading
from jaxinfer.server.run import BACKLOG, open_generations, serve
from jaxinfer.serving.requests.conversation import unparsed_forms
from jaxinfer.signals import FROM_PARENT, end_at_once_on_signals, ignore_sigterm

log = logging.getLogger("jaxinfer.server")


def main() -> None:
    """Runs until the parent says so, or until the parent has gone."""
    end_at_once_on_signals()
    parent = Parent()

    def run() -> int:
        start_log(parent.server)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_run(parent))

    run_to_end(parent, run)


async def _run(parent: Parent) -> int:
    async with parent.beats_in_loop():
        return await _serve(parent)


async def _serve(parent: Parent) -> int:
    from jaxinfer.rpc.engine_client import RemoteEngineClient
    from jaxinfer.rpc.serving import GrpcServer

    options, first = parent.server, parent.settings["index"] == 0
    bound = socket.socket(fileno=parent.settings["socket"])
    async with contextlib.AsyncExitStack() as stack:
        if not parent.settings["again"]:  # else others may be answering, and who comes to this one waits a moment
            await stack.enter_async_context(answer_while_loading(bound, BACKLOG))
        text = await asyncio.to_thread(
            load_text,
            parent.engine,
            max_chars=options.max_prompt_chars,
            control_tokens_in_content=options.control_tokens_in_content,
        )
        await asyncio.to_thread(text.chat_template.check)
        key = os.environ.get(KEY_VARIABLE) or None
        client = RemoteEngineClient(parent.settings["address"], key=key, silence_seconds=options.silence_seconds)
        await client.wait_ready()
    name = (*options.served_model_name, client.info.name)[0]
    if first and not parent.settings["again"]:
        for form in unparsed_forms(options, text.chat_template):
            log.warning("%s: %s", name, form)
    forget_garbage()

    grpc_server = None if options.grpc_port is None else GrpcServer()

    def announce(url: str) -> None:
        message = ready_message(url, name, text, options)
        if grpc_server is not None:
            message += "\n" + grpc_message(grpc_server.address, grpc_server.services)
        parent.tell({"ready": message})

    def stopping(count: int) -> None:
        if first:  # they would all tell the same
            show(stop_message(count, options.drain_seconds), sys.stderr)

    shared = SharedCounts(**parent.settings["counts"], index=parent.settings["index"])
    ignore_sigterm()
    async with short_collections(is_idle=lambda: not open_generations(client)):
        return await serve(client, text, options, bound, announce, stopping, grpc_server, shared, [FROM_PARENT])


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed; None is asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
