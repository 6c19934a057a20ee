"""Errors of several hosts."""

from jaxinfer.errors import JaxinferError, shortened

_MOST_CHARS = 1000


class HostsError(JaxinferError):
    """The hosts cannot serve together: one is missing, or was refused."""


class HostLostError(HostsError):
    """A host is lost, and with it the engine: all hosts must start again."""


def failure_text(error: BaseException) -> str:
    """Return the text of an error for other hosts."""
    name, text = type(error).__name__, str(error)
    if not isinstance(error, JaxinferError):
        text = f"{name}: {text}" if text else name
    return shortened(text, _MOST_CHARS)
