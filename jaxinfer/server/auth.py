"""The API key: asked of every request that uses the model, where one is set."""

import hashlib
import hmac

from aiohttp import web
from aiohttp.typedefs import Middleware

from jaxinfer.server.errors import ApiError, Handler

WRONG_KEY = "the API key is missing or wrong; send it as `Authorization: Bearer KEY`"
_GUARDED = ("/v1", "/tokenize", "/detokenize")


class KeyCheck:
    """Knows whether a request may come in. api_key: None lets everybody in."""

    def __init__(self, api_key: str | None):
        self._expected = None if api_key is None else _digest(api_key)

    def allows(self, authorization: str) -> bool:
        """authorization: what the request says under that name, `Bearer KEY`; empty where it says nothing."""
        if self._expected is None:
            return True
        scheme, _, key = authorization.partition(" ")
        # NOTE: digests have one length, and are compared in a time that does not depend on their content.
        return scheme.lower() == "bearer" and hmac.compare_digest(_digest(key.strip()), self._expected)


def make_auth_middleware(api_key: str | None) -> Middleware:
    """Answers 401 to a request that uses the model and does not bring `api_key`; None lets everybody in."""
    keys = KeyCheck(api_key)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith(_GUARDED) and not keys.allows(request.headers.get("Authorization", "")):
            return ApiError(401, WRONG_KEY, kind="authentication_error", code="invalid_api_key").response()
        return await handler(request)

    return check


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
