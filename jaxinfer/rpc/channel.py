"""Settings of gRPC that both ends of the engine's seam share."""

import os
import re
import socket
from contextlib import closing

from jaxinfer.errors import ParameterError
from jaxinfer.version import __version__

SERVICE, METHOD = "jaxinfer.Engine", f"Attach-{__version__}"
"""The one method, a stream of frames each way (wire.py). It has the version, since frames are positional."""

KEY_NAME = "jaxinfer-engine-key"
"""Name of the metadata that carries an engine's key."""

_LONGEST_PATH = 100
"""Characters of a socket's path; the kernel takes 107 bytes."""

_MOST_BYTES = 256 * 2**20

OPTIONS = (
    ("grpc.max_send_message_length", _MOST_BYTES),
    ("grpc.max_receive_message_length", _MOST_BYTES),
    # One engine an address: a second must not be able to listen beside it.
    ("grpc.so_reuseport", 0),
    # An engine that was started again is to be found at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)
"""Options of all connections between our own processes."""

# A host that vanishes without a word is noticed within seconds. On one machine nobody vanishes; and where all processes
# stop at once, as on a laptop that sleeps, gRPC would blame the other end.
_KEEPALIVE = (
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 2_000),
)


def options_at(address: str) -> tuple[tuple[str, int], ...]:
    """gRPC's options for both ends of a connection at `unix:PATH` or HOST:PORT."""
    return OPTIONS if address.startswith("unix:") else OPTIONS + _KEEPALIVE


def check_free(address: str) -> None:
    """Raises ParameterError, naming `listen`, where an engine cannot listen at `unix:PATH` or HOST:PORT."""
    path = address.removeprefix("unix:")
    if path == address:
        return _check_port(address)
    if not re.fullmatch(r"[\w./+@,=-]+", path, re.ASCII) or len(path) > _LONGEST_PATH:
        raise ParameterError("listen", f"a path has up to {_LONGEST_PATH} letters, digits and ./_+@,=-, not {path!r}")
    if not os.path.isdir(os.path.dirname(path) or "."):
        raise ParameterError("listen", f"there is no folder {os.path.dirname(path)}")
    with closing(socket.socket(socket.AF_UNIX)) as probe:
        # gRPC takes the path of whoever listens there.
        if os.path.exists(path) and probe.connect_ex(path) == 0:
            raise ParameterError("listen", f"another engine listens at {path}")
    return None


def _check_port(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with closing(socket.socket(family, kind, protocol)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        raise ParameterError("listen", f"cannot listen on {address}: {error.strerror}") from None
