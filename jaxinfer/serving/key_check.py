"""KeyCheck: whether a request brings one of the server's API keys."""

import hashlib
import hmac
from collections.abc import Collection

from jaxinfer.serving.errors import ErrorKind, RequestError


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


def wrong_key() -> RequestError:
    """The error of a request without a valid key."""
    message = "the API key is missing or wrong; send it as `Authorization: Bearer KEY` or `X-Api-Key: KEY`"
    return RequestError(message, kind=ErrorKind.UNAUTHENTICATED, code="invalid_api_key")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
