"""`jaxinfer serve`: a model behind OpenAI's API."""

import asyncio
import dataclasses
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jaxinfer.cli.progress import build_progress
from jaxinfer.cli.settings import parse_settings
from jaxinfer.config import EngineConfig
from jaxinfer.server.config import ServerConfig
from jaxinfer.server.loading import answer_while_loading
from jaxinfer.server.run import ACCESS_LOG, BACKLOG, bind_socket, serve
from jaxinfer.text import TextProcessor
from jaxinfer.version import __version__

if TYPE_CHECKING:
    from jaxinfer.engine.core import EngineCore


def run(arguments: Sequence[str]) -> int:
    """Serves until a signal; the exit status is 1 where the engine died."""
    config, settings = parse_settings("serve", {"server": ServerConfig()}, arguments)
    options: ServerConfig = settings.server
    if options.api_key is None:
        options = dataclasses.replace(options, api_key=os.environ.get("JAXINFER_API_KEY") or None)
    _start_log(options)
    # The address first: a port in use is known before a model is loaded.
    with bind_socket(options) as bound:
        return _serve(config, options, bound)


def _start_log(options: ServerConfig) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=options.log_level.upper())
    if options.access_log:
        logging.getLogger(ACCESS_LOG).setLevel(logging.INFO)


def _serve(config: EngineConfig, options: ServerConfig, bound: socket.socket) -> int:
    from jaxinfer.engine.local import LocalEngineClient

    def stopping(count: int) -> None:
        print(stop_message(count, options.drain_seconds), file=sys.stderr, flush=True)

    async def main() -> int:
        async with answer_while_loading(bound, BACKLOG):
            core, text = await asyncio.to_thread(_load, config, options)

        def announce(url: str) -> None:
            print(ready_message(url, options.served_model_name or core.info.name, text, options), flush=True)

        return await serve(LocalEngineClient(core), text, options, bound, announce, stopping)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main())


def _load(config: EngineConfig, options: ServerConfig) -> tuple["EngineCore", TextProcessor]:
    from jaxinfer.build import build_engine, load_text

    text = load_text(config, max_chars=options.max_prompt_chars)
    text.chat_template.check()
    with build_progress() as progress:
        return build_engine(config, progress).core, text


def ready_message(url: str, name: str, text: TextProcessor, options: ServerConfig) -> str:
    """What a user can try at once."""
    if text.chat_template.exists:
        path, body = "/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": "Hello!"}]}
    else:
        path, body = "/v1/completions", {"model": name, "prompt": "Once upon a time", "max_tokens": 64}
    key = "" if options.api_key is None else " -H 'Authorization: Bearer YOUR_KEY'"
    data = json.dumps(body).replace("'", "'\\''")
    return (
        f"jaxinfer {__version__} serves {name} at {url} - try:\n"
        f"  curl {url}{path}{key} -H 'Content-Type: application/json' -d '{data}'"
    )


def stop_message(count: int, seconds: float) -> str:
    """What a user who stops the server waits for, while `count` generations are not done."""
    if not count or not seconds:
        return "stopping"
    what = "1 generation" if count == 1 else f"{count} generations"
    return f"stopping: {what} may go on for {seconds:g} s; Ctrl-C again ends at once"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed; None is asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
