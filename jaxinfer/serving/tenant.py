"""Tenants: whose request it is, as digests that tell nothing of an API key."""

import hashlib
import hmac
from typing import Any

USER_CHARS = 1024
"""Most characters of `user` that tell users apart."""


def tenant_of(api_key: str, user: str | dict[str, Any] | None) -> tuple[str, str]:
    """Digests of a key and of a user of it, for fair sharing; `` where there is none, as for a user that is no text."""
    text = user[:USER_CHARS] if isinstance(user, str) else ""
    return _keyed(api_key, "tenant") if api_key else "", _keyed(api_key, f"user:{text}") if text else ""


def key_salt(api_key: str, cache_salt: str | None) -> str:
    """The cache salt of a key's requests; those that bring a salt of their own share blocks with such requests only."""
    return _keyed(api_key, "cache" if cache_salt is None else f"cache:{cache_salt}")


def _keyed(api_key: str, text: str) -> str:
    # A keyed digest: whoever sees one, in the engine or in its log, learns no key by it.
    key = api_key.encode("utf-8", "surrogateescape")
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
