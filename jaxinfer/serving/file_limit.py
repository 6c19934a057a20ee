"""Open files: as many as the system allows, and connections only while there are some left."""

import logging
import os
import resource

log = logging.getLogger("jaxinfer.server")

_SPARE_FILES = 32
"""Descriptors that are left for what is not a connection: worker processes, files, the engine."""

_FEWEST = 4
"""Connections that are taken however few descriptors there are."""


def raise_file_limit() -> None:
    """Lets this process, and those it starts, have as many open files as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):  # macOS has a lower limit of its own
        log.info("the limit of open files stays at %d", soft)


def most_connections() -> int:
    """Return how many connections this process has descriptors for, now that everything else is open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return 2**31
    return max(_FEWEST, limit - _open_files() - _SPARE_FILES)


def _open_files() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return 0
