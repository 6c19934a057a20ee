"""Errors of several hosts."""

from jaxinfer.errors import JaxinferError


class HostsError(JaxinferError):
    """The hosts cannot serve together: one is missing, or was refused."""


class HostLostError(HostsError):
    """A host is lost, and with it the engine: all hosts must start again."""
