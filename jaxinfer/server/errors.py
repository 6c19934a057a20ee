"""Errors in OpenAI's form, for everything that can go wrong with a request."""

import logging
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from jaxinfer.errors import EngineDeadError, ParameterError, QueueFullError, WorkerLostError

logger = logging.getLogger("jaxinfer.server")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ApiError(Exception):
    """What a client is told: an HTTP status and OpenAI's `message`, `type`, `param`, `code`."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def body(self) -> bytes:
        """`{"error": {"message", "type", "param", "code"}}` as JSON. What a client sent comes back cut."""
        param = None if self.param is None else cut(self.param, 200)
        error = {"message": cut(self.message, 1000), "type": self.kind, "param": param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def response(self) -> web.Response:
        """The HTTP response."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return web.Response(status=self.status, body=self.body(), content_type="application/json", headers=headers)


def cut(text: str, most: int) -> str:
    """The beginning and the end of a text that is longer than `most` characters."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 :]}"


def unavailable(message: str) -> ApiError:
    """The engine cannot serve now."""
    return ApiError(503, message, kind="service_unavailable_error", code="engine_unavailable", retry_after=5)


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of `error`; of one that nobody foresaw, nothing but that it happened."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ParameterError):
        return ApiError(400, str(error), param=error.param)
    if isinstance(error, QueueFullError):
        return ApiError(429, str(error), kind="rate_limit_error", code="queue_full", retry_after=error.retry_after)
    if isinstance(error, EngineDeadError):
        return unavailable(str(error))
    if isinstance(error, WorkerLostError):
        return ApiError(503, str(error), kind="service_unavailable_error", code="worker_lost", retry_after=1)
    if isinstance(error, web.HTTPException):
        return _from_http(error)
    logger.error("a request failed", exc_info=error)
    return ApiError(500, "the server failed on this request; its log says why", kind="server_error")


def _from_http(error: web.HTTPException) -> ApiError:
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return ApiError(413, error.text or "the request body is too large", code="body_too_large")
    if error.status == 404:
        return ApiError(404, "there is no such endpoint; GET / lists all", code="not_found")
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return ApiError(405, f"{error.method} is not allowed here; {allowed} is", code="method_not_allowed")
    return ApiError(error.status, error.reason)


@web.middleware
async def error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A failure while handling a request ends that request with an error, and nothing else."""
    try:
        response = await handler(request)
    except Exception as error:
        if isinstance(error, web.HTTPException) and error.status < 400:
            raise
        response = as_api_error(error).response()
    if response.status >= 400 and not response.prepared and not request.content.is_eof():
        response.force_close()  # what comes of the body is not the next request
    return response
