"""A server's answers while its model is loaded: probes learn that it lives, other clients to come back later."""

import contextlib
import socket
from collections.abc import AsyncIterator

from aiohttp import web

from jaxinfer.server.errors import SERVER, error_response
from jaxinfer.server.protocol import HttpRunner
from jaxinfer.serving.config import ServerConfig
from jaxinfer.serving.errors import ErrorKind, RequestError

RETRY_SECONDS = 5

_SHUTDOWN_SECONDS = 0.2


@contextlib.asynccontextmanager
async def answer_while_loading(bound: socket.socket, backlog: int) -> AsyncIterator[None]:
    """Answers on a bound socket: /healthz 200, everything else 503. Who connects at the end waits for the server."""
    app = web.Application()
    app.add_routes([web.get("/healthz", _alive), web.route("*", "/{path:.*}", _loading)])
    runner = HttpRunner(app, ServerConfig(), access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        # A descriptor of its own is closed with it; the socket goes on listening.
        await web.SockSite(runner, bound.dup(), backlog=backlog).start()
        yield
    finally:
        await runner.cleanup()


async def _alive(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"}, headers={"Server": SERVER})


async def _loading(request: web.Request) -> web.Response:
    error = RequestError(
        "the model is being loaded", kind=ErrorKind.UNAVAILABLE, code="loading", retry_after=RETRY_SECONDS
    )
    response = error_response(error, request)
    response.force_close()
    return response
