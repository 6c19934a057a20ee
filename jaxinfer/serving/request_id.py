"""The id that a request may give itself."""

import re

from jaxinfer.serving.errors import RequestError

_ALLOWED = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


def is_allowed_id(given: str) -> bool:
    """True where a reply may be called so."""
    return _ALLOWED.fullmatch(given) is not None


def checked_id(given: str, name: str) -> str:
    """The id that a request gives itself. name: what errors call it. Raises RequestError."""
    if not is_allowed_id(given):
        message = f"{name}: must have 1 to 128 characters, letters, digits and `._:/+=-`"
        raise RequestError(message, param=name)
    return given
