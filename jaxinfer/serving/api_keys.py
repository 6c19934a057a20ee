"""The file of API keys."""

import logging
import stat
from collections.abc import Sequence
from pathlib import Path

from jaxinfer.errors import ParameterError

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
