"""What a gRPC client is told of an error: a status, words, and trailers that a program can read."""

import contextlib
from collections.abc import AsyncIterator

import grpc

from jaxinfer.server.errors import ApiError, as_api_error, cut

FIELD, CODE, RETRY_AFTER = "jaxinfer-field", "jaxinfer-code", "retry-after"
"""Names of trailers: the field that is wrong, the error's code, and seconds."""

ABORTED = 499
"""The HTTP status, of many proxies, of a request that its client has ended."""

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ABORTED: grpc.StatusCode.CANCELLED,
    503: grpc.StatusCode.UNAVAILABLE,
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
        await abort(call, as_api_error(error))


async def abort(call: grpc.aio.ServicerContext, error: ApiError) -> None:
    """Ends a call. Raises."""
    wrong = grpc.StatusCode.INVALID_ARGUMENT if 400 <= error.status < 500 else grpc.StatusCode.INTERNAL
    code = _CODES.get(error.status, wrong)
    await call.abort(code, cut(error.message, _MESSAGE_CHARS), _trailers(error))


def _trailers(error: ApiError) -> tuple[tuple[str, str], ...]:
    after = None if error.retry_after is None else str(error.retry_after)
    said = ((FIELD, error.param and cut(error.param, _FIELD_CHARS)), (CODE, error.code), (RETRY_AFTER, after))
    return tuple((name, value.encode("ascii", "backslashreplace").decode()) for name, value in said if value)
