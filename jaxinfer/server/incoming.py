"""IncomingBody: a request's body as it comes from the network, within limits of size, time and memory."""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from aiohttp import ClientPayloadError, HttpVersion11, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Middleware

from jaxinfer.server.body_budget import BodyBudget, BodyShare
from jaxinfer.server.context import API_KEY
from jaxinfer.server.errors import Handler, HttpError
from jaxinfer.serving.admission import RequestLimit
from jaxinfer.serving.bodies.structure import LARGE_BYTES, is_large
from jaxinfer.serving.config import ServerConfig
from jaxinfer.serving.errors import RequestError

_LEAST_BYTES_A_SECOND = 1024
"""The pace that a body must keep once the time for one part of it is over."""


class IncomingBody:
    """A complete body. begin: makes a share of the budget. share: what the body has of it until `forget`."""

    def __init__(self, data: bytes | bytearray, begin: Callable[[], BodyShare], share: BodyShare | None = None):
        self._begin = begin
        self._hold(data, share)

    def _hold(self, data: bytes | bytearray, share: BodyShare | None) -> None:
        self.data = data
        self.large = is_large(data)
        self._share = share
        if share is not None and self.large:
            share.wait()
        elif share is not None:
            share.end()

    def replace(self, data: bytes | bytearray) -> None:
        """Put another body in its place: what it refers to is in it now. Raises RequestError if there is no room."""
        self.forget()
        share = self._begin()
        try:
            share.grow(len(data))
            self._hold(data, share)
        except BaseException:
            share.end()
            raise

    def forget(self) -> None:
        """Drops the bytes."""
        self.data = b""
        if self._share is not None:
            self._share.end()


INCOMING = web.RequestKey("incoming", IncomingBody)
"""Body of a request until it is decoded."""


def make_admission_middleware(admission: RequestLimit, options: ServerConfig, budget: BodyBudget) -> Middleware:
    """A place for every POST whose body has come. Reading, health and metrics are never refused."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method != "POST" or request.match_info.http_exception is not None:
            return await handler(request)
        # NOTE: a client that is slow to send takes no place. Where there is none its body is not waited for, either.
        admission.check()
        incoming = request[INCOMING] = await _read_incoming(request, options, budget)
        try:
            with admission.place():
                return await handler(request)
        finally:
            incoming.forget()

    return check


async def _read_incoming(request: web.Request, options: ServerConfig, budget: BodyBudget) -> IncomingBody:
    """Reads a body of JSON. Raises RequestError."""
    _check_headers(request, options.max_body_bytes)
    await _ask_for_body(request)
    content, begin = request.content, partial(budget.begin, request.get(API_KEY, ""))
    try:
        # NOTE: most bodies come with their headers, and need neither a timer nor a place in the budget.
        first = content.read_nowait()
        _check_size(len(first), options.max_body_bytes)
        if content.at_eof() and not is_large(first):
            return IncomingBody(first, begin)
        return await _read_rest(request, first, options, budget, begin)
    except (web.RequestPayloadError, ClientPayloadError, HttpProcessingError) as error:
        raise RequestError(f"the body cannot be read: {_first_line(error)}", code="invalid_body") from None


async def ask_later(request: web.Request) -> None:
    """Instead of aiohttp's answer to `Expect: 100-continue`: the body is asked for when the headers are in order."""


async def _ask_for_body(request: web.Request) -> None:
    # HTTP/1.0 has no interim answers: its clients would take one for the answer.
    if "Expect" in request.headers and request.writer is not None and request.version >= HttpVersion11:
        with contextlib.suppress(ConnectionError):  # a client that has left: reading its body ends the request
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0


async def _read_rest(
    request: web.Request, first: bytes, options: ServerConfig, budget: BodyBudget, begin: Callable[[], BodyShare]
) -> IncomingBody:
    # A list of parts would take forty bytes for each that has one.
    data, share, content = bytearray(first), begin(), request.content
    pace = _Pace(options.client_body_timeout)
    try:
        share.grow(len(first))
        while not content.at_eof():
            if len(data) > LARGE_BYTES and not content.is_eof():
                await _turn(request.transport, budget)
            part = await _read_part(content, share, pace.seconds_left(len(data)))
            await asyncio.sleep(0)  # bytes that came one by one are handed over without a round of the event loop
            data += part
            _check_size(len(data), options.max_body_bytes)
            share.grow(len(part))
        return IncomingBody(data, begin, share)  # not as `bytes`: copying megabytes takes a while
    except BaseException:
        share.end()
        if share.refused and not content.is_eof():
            _stop_reading(request)
        raise


async def _turn(transport: asyncio.Transport | None, budget: BodyBudget) -> None:
    """Waits, with nothing read meanwhile, so that many long bodies at once do not fill each round of the event loop."""
    if transport is None:
        return
    transport.pause_reading()
    try:
        async with budget.turns:
            await asyncio.sleep(0)
    finally:
        transport.resume_reading()


def _stop_reading(request: web.Request) -> None:
    """Leave the rest of an incomplete body unread: reading it only to drop it would cost as much as taking it.

    The connection closes after the answer (`error_middleware`). After a complete body it must stay readable, because
    the next request comes on it.
    """
    with contextlib.suppress(Exception):  # what is wrong with it is no matter
        request.content.read_nowait()
    if request.transport is not None:
        request.transport.pause_reading()


class _Pace:
    """Return for how long the next part of a body may take: `timeout` seconds, and less for a body that trickles."""

    def __init__(self, timeout: float):
        self._timeout = timeout
        self._clock = asyncio.get_running_loop().time
        self._end = self._clock() + timeout

    def seconds_left(self, received: int) -> float:
        """Return the seconds for the next part of a body of which so many bytes have come."""
        return min(self._timeout, self._end + received / _LEAST_BYTES_A_SECOND - self._clock())


async def _read_part(content: StreamReader, share: BodyShare, seconds: float) -> bytes:
    try:
        return await share.watched(content.readany, seconds)
    except TimeoutError:
        raise HttpError(408, "the body did not come in time", code="body_timeout") from None


def _check_headers(request: web.Request, most: int) -> None:
    if request.content_type != "application/json":
        message = f"the content type must be application/json, not {request.content_type}"
        raise HttpError(415, message, code="unsupported_media_type")
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise HttpError(415, "compressed bodies are not accepted", code="unsupported_media_type")
    if request.content_length is not None:
        _check_size(request.content_length, most)


def _check_size(size: int, most: int) -> None:
    if size > most:
        message = f"the request body is longer than the {most} bytes allowed (--max-body-bytes)"
        raise HttpError(413, message, code="body_too_large")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
