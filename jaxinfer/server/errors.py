"""Errors as HTTP responses, in OpenAI's form, or in Anthropic's for the paths of its API."""

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from jaxinfer.server.context import ensured_id
from jaxinfer.server.messages_errors import is_messages, messages_error_body
from jaxinfer.serving.errors import ErrorKind, RequestError, as_request_error, cut

SERVER = "jaxinfer"
"""The header Server, without a version of anything."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_STATUS = {
    ErrorKind.INVALID: 400,
    ErrorKind.UNAUTHENTICATED: 401,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.TIMED_OUT: 408,
    ErrorKind.TOO_LARGE: 413,
    ErrorKind.BUSY: 429,
    ErrorKind.ABORTED: 499,
    ErrorKind.FAILED: 500,
    ErrorKind.UNAVAILABLE: 503,
}
_TYPES = {
    ErrorKind.UNAUTHENTICATED: "authentication_error",
    ErrorKind.BUSY: "rate_limit_error",
    ErrorKind.FAILED: "server_error",
    ErrorKind.UNAVAILABLE: "service_unavailable_error",
}


class HttpError(RequestError):
    """A request that is wrong as HTTP, with a status of its own."""

    def __init__(self, status: int, message: str, *, code: str | None = None):
        super().__init__(message, code=code)
        self.status = status


def status_of(error: RequestError) -> int:
    """The HTTP status of an error."""
    return error.status if isinstance(error, HttpError) else _STATUS[error.kind]


def error_body(error: RequestError) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}` as JSON. What a client sent comes back cut."""
    param = None if error.param is None else cut(error.param, 200)
    kind = _TYPES.get(error.kind, "invalid_request_error")
    told = {"message": cut(error.message, 1000), "type": kind, "param": param, "code": error.code}
    return msgspec.json.encode({"error": told})


def error_response(error: Exception, request: web.BaseRequest) -> web.Response:
    """The response to a request that failed with `error`."""
    told = as_http_error(error)
    status, headers = status_of(told), {"Server": SERVER}
    if isinstance(error, web.HTTPMethodNotAllowed):
        headers["Allow"] = ", ".join(sorted(error.allowed_methods))
    if told.retry_after is not None:
        headers["Retry-After"] = str(told.retry_after)
    if is_messages(request.path):
        name = headers["request-id"] = ensured_id(request)
        body = messages_error_body(told, status, name)
    else:
        body = error_body(told)
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def as_http_error(error: Exception) -> RequestError:
    """Convert `error`, aiohttp's own errors included, to one for the client."""
    if not isinstance(error, web.HTTPException):
        return as_request_error(error)
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return HttpError(413, error.text or "the request body is too large", code="body_too_large")
    if error.status == 404:
        return HttpError(404, "there is no such endpoint; GET / lists all", code="not_found")
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return HttpError(405, f"{error.method} is not allowed here; {allowed} is", code="method_not_allowed")
    return HttpError(error.status, error.reason)


@web.middleware
async def error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A failure while handling a request ends that request with an error, and nothing else."""
    try:
        response = await handler(request)
    except Exception as error:
        if isinstance(error, web.HTTPException) and error.status < 400:
            raise
        response = error_response(error, request)
    if response.status >= 400 and not response.prepared and not request.content.is_eof():
        response.force_close()  # what comes of the body is not the next request
    return response
