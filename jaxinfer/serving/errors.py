"""RequestError: what a client is told of a request that fails, in words that belong to no protocol."""

import logging
from enum import Enum

from jaxinfer.errors import EngineDeadError, ParameterError, PromptTooLongError, QueueFullError, WorkerLostError

log = logging.getLogger("jaxinfer.server")


class ErrorKind(Enum):
    """Kinds of errors, which HTTP and gRPC each map to a status."""

    INVALID = "invalid"
    UNAUTHENTICATED = "unauthenticated"
    NOT_FOUND = "not_found"
    TIMED_OUT = "timed_out"
    TOO_LARGE = "too_large"
    BUSY = "busy"
    ABORTED = "aborted"
    FAILED = "failed"
    UNAVAILABLE = "unavailable"


class RequestError(Exception):
    """A request that fails. param: the field that is wrong. code: for programs. retry_after: seconds."""

    def __init__(
        self,
        message: str,
        *,
        kind: ErrorKind = ErrorKind.INVALID,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ):
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after = retry_after


def cut(text: str, most: int) -> str:
    """The beginning and the end of a text that is longer than `most` characters."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 :]}"


def unavailable(message: str) -> RequestError:
    """The engine cannot serve now."""
    return RequestError(message, kind=ErrorKind.UNAVAILABLE, code="engine_unavailable", retry_after=5)


def as_request_error(error: Exception) -> RequestError:
    """Convert `error` to one for the client. An unexpected error is logged, and the client learns only that it
    happened."""
    match error:
        case RequestError():
            return error
        case PromptTooLongError():
            return RequestError(str(error), param=error.param, code="context_length_exceeded")
        case ParameterError():
            return RequestError(str(error), param=error.param)
        case QueueFullError():
            return RequestError(str(error), kind=ErrorKind.BUSY, code="queue_full", retry_after=error.retry_after)
        case EngineDeadError():
            return unavailable(str(error))
        case WorkerLostError():
            return RequestError(str(error), kind=ErrorKind.UNAVAILABLE, code="worker_lost", retry_after=1)
    log.error("a request failed", exc_info=error)
    return RequestError("the server failed on this request; its log says why", kind=ErrorKind.FAILED)
