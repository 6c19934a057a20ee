"""CORS: which pages of other origins may use the server from a browser. Fetch standard, section 3.2."""

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from jaxinfer.server.errors import Handler
from jaxinfer.serving.config import ServerConfig

MAX_AGE_SECONDS = 600
"""Seconds that a browser may cache a preflight's answer."""

_EXPOSED = "X-Request-Id, request-id, X-Ignored-Fields, X-Max-Tokens, Server-Timing, Retry-After"


def make_cors_middleware(options: ServerConfig) -> Middleware:
    """Answers preflight requests of allowed origins; every other request goes on."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        asks = request.method == "OPTIONS" and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
        if not asks or not _allowed(request, options):
            return await handler(request)
        return web.Response(
            status=204,
            headers={
                hdrs.ACCESS_CONTROL_ALLOW_METHODS: ", ".join(options.allowed_methods),
                hdrs.ACCESS_CONTROL_ALLOW_HEADERS: _headers(request, options),
                hdrs.ACCESS_CONTROL_MAX_AGE: str(MAX_AGE_SECONDS),
            },
        )

    return check


def add_cors_headers(request: web.Request, response: web.StreamResponse, options: ServerConfig) -> None:
    """Tells the browser that a page of an allowed origin may read the response; before a stream's first byte too."""
    if not options.allowed_origins:
        return
    response.headers.add(hdrs.VARY, hdrs.ORIGIN)
    if not _allowed(request, options):
        return
    every = "*" in options.allowed_origins
    response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = "*" if every else request.headers[hdrs.ORIGIN]
    response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = _EXPOSED
    if options.allow_credentials:
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_CREDENTIALS] = "true"


def _headers(request: web.Request, options: ServerConfig) -> str:
    """Headers that a page may send. OpenAI's client for Node sends a dozen headers of its own.

    They are repeated, since browsers take a literal `*` for a name where credentials are sent.
    """
    if "*" not in options.allowed_headers:
        return ", ".join(options.allowed_headers)
    return request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "*")


def _allowed(request: web.Request, options: ServerConfig) -> bool:
    origin = request.headers.get(hdrs.ORIGIN)
    return origin is not None and ("*" in options.allowed_origins or origin in options.allowed_origins)
