"""The API key: asked of every request that uses the model, where one is set."""

import hashlib
import hmac
from collections.abc import Collection

from aiohttp import web
from aiohttp.typedefs import Middleware

from jaxinfer.server.errors import ApiError, Handler

WRONG_KEY = "the API key is missing or wrong; send it as `Authorization: Bearer KEY` or `X-Api-Key: KEY`"
_GUARDED = ("/v1", "/tokenize", "/detokenize", "/tokenizer_info", "/server_info", "/invocations")


class KeyCheck:
    """Knows whether a request may come in. api_keys: none let everybody in."""

    def __init__(self, api_keys: Collection[str]):
        self._expected = [_digest(key) for key in api_keys]

    def allows(self, authorization: str, api_key: str = "") -> bool:
        """authorization: that header's value, `Bearer KEY`. api_key: that of X-Api-Key. Empty where it is absent."""
        return self.accepted(authorization, api_key) is not None

    def accepted(self, authorization: str, api_key: str = "") -> str | None:
        """The key by which a request may come in; `` where none is asked for, None where it may not."""
        if not self._expected:
            return ""
        scheme, _, bearer = authorization.partition(" ")
        by_scheme = bearer.strip() if scheme.lower() == "bearer" else ""
        found = None
        for given in (api_key.strip(), by_scheme):
            digest = _digest(given)
            for expected in self._expected:
                # NOTE: digests have one length, and are compared in a time that does not depend on their content.
                if hmac.compare_digest(digest, expected):
                    found = given
        return found


API_KEY = web.RequestKey("api_key", str)
"""Where a request keeps the key by which it came in; `` where none is asked for."""


def make_auth_middleware(api_keys: Collection[str]) -> Middleware:
    """Answers 401 to a request that uses the model and brings none of `api_keys`; with none of them all come in."""
    keys = KeyCheck(api_keys)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", ""), request.headers.get("X-Api-Key", "")
        accepted = keys.accepted(*given)
        if accepted is not None:
            request[API_KEY] = accepted
        elif request.path.startswith(_GUARDED):
            return ApiError(401, WRONG_KEY, kind="authentication_error", code="invalid_api_key").response()
        return await handler(request)

    return check


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
