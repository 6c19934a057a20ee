"""The API key: asked of every request that uses the model, where one is set."""

import hashlib
import hmac

from aiohttp import web
from aiohttp.typedefs import Middleware

from jaxinfer.server.errors import ApiError, Handler

WRONG_KEY = "the API key is missing or wrong; send it as `Authorization: Bearer KEY` or `X-Api-Key: KEY`"
_GUARDED = ("/v1", "/tokenize", "/detokenize", "/tokenizer_info", "/server_info", "/invocations")


class KeyCheck:
    """Knows whether a request may come in. api_key: None lets everybody in."""

    def __init__(self, api_key: str | None):
        self._expected = None if api_key is None else _digest(api_key)

    def allows(self, authorization: str, api_key: str = "") -> bool:
        """authorization: that header's value, `Bearer KEY`. api_key: that of X-Api-Key. Empty where it is absent."""
        if self._expected is None:
            return True
        scheme, _, bearer = authorization.partition(" ")
        # NOTE: digests have one length, and are compared in a time that does not depend on their content.
        by_header = hmac.compare_digest(_digest(api_key.strip()), self._expected)
        by_scheme = hmac.compare_digest(_digest(bearer.strip()), self._expected) and scheme.lower() == "bearer"
        return by_header or by_scheme


def make_auth_middleware(api_key: str | None) -> Middleware:
    """Answers 401 to a request that uses the model and does not bring `api_key`; None lets everybody in."""
    keys = KeyCheck(api_key)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", ""), request.headers.get("X-Api-Key", "")
        if request.path.startswith(_GUARDED) and not keys.allows(*given):
            return ApiError(401, WRONG_KEY, kind="authentication_error", code="invalid_api_key").response()
        return await handler(request)

    return check


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
