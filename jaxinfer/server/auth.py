"""The API key: asked of every request that uses the model, where one is set."""

import hashlib
import hmac

from aiohttp import web
from aiohttp.typedefs import Middleware

from jaxinfer.server.errors import ApiError, Handler

_GUARDED = ("/v1", "/tokenize", "/detokenize")


def make_auth_middleware(api_key: str | None) -> Middleware:
    """Answers 401 to a request that uses the model and does not bring `api_key`; None lets everybody in."""
    expected = None if api_key is None else _digest(api_key)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if expected is not None and request.path.startswith(_GUARDED) and not _matches(request, expected):
            message = "the API key is missing or wrong; send it as `Authorization: Bearer KEY`"
            return ApiError(401, message, kind="authentication_error", code="invalid_api_key").response()
        return await handler(request)

    return check


def _matches(request: web.Request, expected: bytes) -> bool:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    # NOTE: digests have one length, and are compared in a time that does not depend on their content.
    return scheme.lower() == "bearer" and hmac.compare_digest(_digest(key.strip()), expected)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
