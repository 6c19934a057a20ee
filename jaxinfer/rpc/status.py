"""Conversion of errors for gRPC clients: a status, a text, and trailers that a program can read."""

import contextlib
from collections.abc import AsyncIterator

import grpc

from jaxinfer.serving.errors import ErrorKind, RequestError, as_request_error, cut

FIELD, CODE, RETRY_AFTER = "jaxinfer-field", "jaxinfer-code", "retry-after"
"""Names of trailers: the field that is wrong, the error's code, and seconds."""

_CODES = {
    ErrorKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    ErrorKind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorKind.TIMED_OUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorKind.TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorKind.BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorKind.ABORTED: grpc.StatusCode.CANCELLED,
    ErrorKind.FAILED: grpc.StatusCode.INTERNAL,
    ErrorKind.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}
# Every character of a message may take twelve bytes on the way, and clients take 8 KiB of trailers by default.
_MESSAGE_CHARS = 500
_FIELD_CHARS = 100


@contextlib.asynccontextmanager
async def answering(call: grpc.aio.ServicerContext) -> AsyncIterator[None]:
    """Ends a call with the status of what is raised inside; of what nobody foresaw, only the log says why."""
    try:
        yield
    except grpc.aio.BaseError:
        raise  # the call has ended
    except Exception as error:
        await abort(call, as_request_error(error))


async def abort(call: grpc.aio.ServicerContext, error: RequestError) -> None:
    """Ends a call. Raises."""
    await call.abort(_CODES[error.kind], cut(error.message, _MESSAGE_CHARS), _trailers(error))


def _trailers(error: RequestError) -> tuple[tuple[str, str], ...]:
    after = None if error.retry_after is None else str(error.retry_after)
    said = ((FIELD, error.param and cut(error.param, _FIELD_CHARS)), (CODE, error.code), (RETRY_AFTER, after))
    return tuple((name, value.encode("ascii", "backslashreplace").decode()) for name, value in said if value)
