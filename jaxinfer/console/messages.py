"""Messages of `jaxinfer serve` to its user."""

import contextlib
import json
from collections.abc import Sequence
from typing import TextIO

from jaxinfer.serving.config import ServerConfig
from jaxinfer.text import TextProcessor
from jaxinfer.version import __version__


def show(message: str, stream: TextIO) -> None:
    """Prints a line. Without effect where it cannot be written: a full disk must not end a server."""
    with contextlib.suppress(OSError):
        print(message, file=stream, flush=True)


def ready_message(url: str, name: str, text: TextProcessor, options: ServerConfig) -> str:
    """Return a first request that a user can try at once."""
    if text.chat_template.exists:
        path, body = "/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": "Hello!"}]}
    else:
        path, body = "/v1/completions", {"model": name, "prompt": "Once upon a time", "max_tokens": 64}
    key = " -H 'Authorization: Bearer YOUR_KEY'" if options.api_keys else ""
    data = json.dumps(body).replace("'", "'\\''")
    return (
        f"jaxinfer {__version__} serves {name} at {url} - try:\n"
        f"  curl {url}{path}{key} -H 'Content-Type: application/json' -d '{data}'"
    )


def grpc_message(address: str, services: Sequence[str]) -> str:
    """Return the address of gRPC, and its services."""
    told = ", ".join(services)
    absent = "" if any(name.endswith("VllmEngine") for name in services) else "; VllmEngine needs jaxinfer[gateway]"
    return f"  gRPC at {address}: {told}{absent}"


def stop_message(count: int, seconds: float) -> str:
    """Tell a user who stops the server why it still waits, while `count` generations are not done."""
    if not count or not seconds:
        return "stopping"
    what = "1 generation" if count == 1 else f"{count} generations"
    return f"stopping: {what} may go on for {seconds:g} s; Ctrl-C again ends at once"
