"""Errors as bodies in Anthropic's form, which the paths of its Messages API have."""

from typing import Any

import msgspec

from jaxinfer.serving.bodies.messages_schema import THREADS_REFUSED
from jaxinfer.serving.errors import RequestError, cut
from jaxinfer.serving.requests.messages_errors import with_anthropics_names

_PATH = "/v1/messages"

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def is_messages(path: str) -> bool:
    """True for the paths of the Messages API."""
    return path == _PATH or path.startswith(f"{_PATH}/")


def messages_error_body(error: RequestError, status: int, request_id: str) -> bytes:
    """`{"type": "error", "error": {"type", "message"}, "request_id"}` as JSON. What a client sent comes back cut."""
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    told: dict[str, Any] = {"type": kind, "message": cut(with_anthropics_names(error).message, 1000)}
    if error.code == THREADS_REFUSED:
        told["details"] = {"error_code": error.code}
    return msgspec.json.encode({"type": "error", "error": told, "request_id": request_id})
