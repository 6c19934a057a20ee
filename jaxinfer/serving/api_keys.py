"""API keys: the file of them, and whether a request brings one."""

import hashlib
import hmac
import logging
import stat
from collections.abc import Collection, Sequence
from pathlib import Path

from jaxinfer.errors import ParameterError
from jaxinfer.serving.errors import ErrorKind, RequestError

log = logging.getLogger("jaxinfer.server")

_MOST_BYTES = 1 << 20
_known: dict[str, tuple[str, ...]] = {}


def know_api_keys(file: str, keys: Sequence[str]) -> None:
    """Keys that another process of this server has read: what became of the file since then has no effect."""
    _known[file] = tuple(keys)


def read_api_keys(file: str) -> tuple[str, ...]:
    """The keys of a file, one a line; empty lines and those that begin with # are none. It is read once.

    Warns where others than its owner can read it. Raises ParameterError.
    """
    if file not in _known:
        _known[file] = _read(file)
    return _known[file]


def _read(file: str) -> tuple[str, ...]:
    path = Path(file)
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) or path.stat().st_size > _MOST_BYTES:
            raise ParameterError("api_key_file", f"{file} must be a regular file of at most {_MOST_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ParameterError("api_key_file", f"{file} cannot be read: {reason}") from None
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        log.warning("--api-key-file: %s can be read by other users; `chmod 600` keeps it private", file)
    keys = [line.strip() for line in text.splitlines()]
    found = tuple(dict.fromkeys(key for key in keys if key and not key.startswith("#")))
    if not found:
        raise ParameterError("api_key_file", f"{file} has no key; write one a line")
    return found


class KeyCheck:
    """Knows whether a request brings a key. api_keys: none let everybody in."""

    def __init__(self, api_keys: Collection[str]):
        self._expected = [_digest(key) for key in api_keys]

    def accepted(self, authorization: str, api_key: str = "") -> str | None:
        """The key by which a request may come in; `` where none is asked for, None where it may not.

        authorization: that header's value, `Bearer KEY`. api_key: that of X-Api-Key. Empty where it is absent.
        """
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
