"""One HTTP connection: what cannot be parsed is answered in OpenAI's form, and headers must come in time."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from jaxinfer.server.errors import SERVER, HttpError, as_http_error, error_body, error_response, status_of
from jaxinfer.serving.config import ServerConfig
from jaxinfer.serving.errors import ErrorKind, RequestError, cut
from jaxinfer.serving.file_limit import most_connections

log = logging.getLogger("jaxinfer.server")

LOG_SECONDS = 10.0
"""Malformed requests are logged at most once in so many seconds."""

RETRY_SECONDS = 2

Handler = Callable[[Any], Awaitable[web.StreamResponse]]

_READ_BYTES = 1 << 16
"""Read of a connection in one round of the event loop at most: hundreds may have long bodies coming at once."""

_A_ROUND = 16
"""Connections that are ended in one round of the event loop."""


class MalformedLog:
    """Logs what cannot be parsed: one line, and how many more there were, once in LOG_SECONDS."""

    def __init__(self) -> None:
        self._next = 0.0
        self._more = 0

    def add(self, remote: str | None, reason: str) -> None:
        """One malformed request."""
        now = time.monotonic()
        if now < self._next:
            self._more += 1
            return
        before = f" ({self._more} more before it)" if self._more else ""
        log.warning("a malformed request from %s: %s%s", remote, reason, before)
        self._next, self._more = now + LOG_SECONDS, 0


class SpreadCalls:
    """Calls that come by the thousand in one round of the event loop, a few in each round.

    To end a connection ends its request, which takes a while: thousands that end at once would hold up all others.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._calls: deque[Callable[[], None]] = deque()

    def add(self, call: Callable[[], None]) -> None:
        """Calls it within this round or a later one."""
        self._calls.append(call)
        if len(self._calls) == 1:
            self._loop.call_soon(self._some)

    def _some(self) -> None:
        try:
            for _ in range(min(_A_ROUND, len(self._calls))):
                self._calls.popleft()()
        finally:
            if self._calls:
                self._loop.call_soon(self._some)


class Connection(RequestHandler):
    """A connection of HttpServer."""

    __slots__ = ("_header_timer", "_http")

    def __init__(self, server: "HttpServer", **options: Any):
        super().__init__(server, **options)
        self._http = server
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if hasattr(transport, "max_size"):  # of asyncio's own event loop, where it is 256 KiB
            transport.max_size = _READ_BYTES  # pyright: ignore[reportAttributeAccessIssue]
        if self._http.is_full:
            self._end(_too_many_connections())
        else:
            self._await_headers()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._headers_came()
        self._http.losses.add(lambda: self._lost(exc))

    def _lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self._request_count
        super().data_received(data)
        if self._request_count > before:
            self._headers_came()
            self._break_off()
        elif self._header_timer is None and self._waiter is not None:
            self._await_headers()  # the beginning of a request on a connection that was kept

    def _break_off(self) -> None:
        """Tells the request under way where the rest of its body cannot be parsed, which aiohttp does not."""
        last, request = self._messages[-1][0] if self._messages else None, self._current_request
        if isinstance(last, _ErrInfo) and request is not None and not request.content.is_eof():
            self.close()  # nothing that comes after it can be told from the body
            self._http.malformed.add(request.remote, _reason(last.exc, last.message))
            request.content.set_exception(web.RequestPayloadError(_reason(last.exc, last.message)))
            request.content.feed_eof()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to what aiohttp cannot parse, or to a failure outside of our own handling."""
        if status >= 500 or exc is None:
            error = as_http_error(exc if isinstance(exc, Exception) else RuntimeError(message))
        else:
            reason = _reason(exc, message)
            self._http.malformed.add(request.remote, reason)
            error = HttpError(status, f"the request is not valid HTTP: {reason}", code="malformed_request")
            if isinstance(exc, LineTooLong):
                most = f"{self._http.max_header_bytes} bytes (--max-header-bytes)"
                error = HttpError(431, f"the request line or a header is longer than {most}", code="headers_too_large")
        if request.writer is not None and request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        response = error_response(error, request)
        response.force_close()
        return response

    def _await_headers(self) -> None:
        self._header_timer = self._loop.call_later(self._http.header_timeout, self._headers_late)

    def _headers_came(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _headers_late(self) -> None:
        self._header_timer = None
        if self._waiter is not None:  # else a request is under way, whose rest is read and dropped
            seconds = f"{self._http.header_timeout:g}"
            self._end(HttpError(408, f"the request's headers did not come within {seconds} s", code="header_timeout"))

    def _end(self, error: RequestError) -> None:
        """Tells a client without a request why the connection ends."""
        if self.transport is not None:
            self.transport.write(raw_response(error))
        self.force_close()


class HttpServer(web.Server):
    """Makes connections. is_full: this one is more than the process has descriptors for."""

    def __init__(self, handler: Handler, options: ServerConfig, **kwargs: Any):
        super().__init__(handler, **kwargs)
        self.header_timeout = options.client_header_timeout
        self.max_header_bytes = options.max_header_bytes
        self.malformed = MalformedLog()
        self.losses = SpreadCalls(self._loop)
        self._most = most_connections()

    @property
    def is_full(self) -> bool:
        return len(self._connections) > self._most

    def __call__(self) -> RequestHandler:
        return Connection(self, loop=self._loop, **self._kwargs)


class HttpRunner(web.AppRunner):
    """AppRunner with connections of our own."""

    def __init__(self, app: web.Application, options: ServerConfig, **kwargs: Any):
        super().__init__(app, **kwargs)
        self._options = options

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()

        async def handle(request: web.Request) -> web.StreamResponse:
            # aiohttp answers it before any middleware, as text.
            if request.headers.get("Expect", "100-continue").lower() == "100-continue":
                return await made.request_handler(request)
            error = HttpError(417, "the header Expect may only be 100-continue", code="expectation_failed")
            response = error_response(error, request)
            response.force_close()
            return response

        return HttpServer(
            handle,
            self._options,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            loop=asyncio.get_running_loop(),
            **made._kwargs,
        )


def raw_response(error: RequestError) -> bytes:
    """An error as the bytes of a response that ends its connection."""
    status, body = status_of(error), error_body(error)
    after = "" if error.retry_after is None else f"Retry-After: {error.retry_after}\r\n"
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nServer: {SERVER}\r\n"
        f"Content-Type: application/json; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        f"{after}Connection: close\r\n\r\n"
    )
    return head.encode() + body


def _too_many_connections() -> RequestError:
    message = f"the server has too many connections; try again in {RETRY_SECONDS} s"
    return RequestError(message, kind=ErrorKind.UNAVAILABLE, code="too_many_connections", retry_after=RETRY_SECONDS)


def _reason(exc: BaseException, message: str | None) -> str:
    """One line of printable text."""
    lines = (message or str(exc)).splitlines() or [type(exc).__name__]
    return "".join(char if char.isprintable() else "?" for char in cut(lines[0], 200)).rstrip(": ")
