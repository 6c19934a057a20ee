"""JAX on several hosts: their processes join before any of them has a device."""

import os
import socket
from ipaddress import ip_address

import jax

from jaxinfer.errors import JaxinferError, ParameterError


def join_processes(coordinator: str, num_hosts: int, host_id: int) -> None:
    """From now on `jax.devices()` has those of all hosts, host by host. coordinator: HOST:PORT of host 0.

    Every host must do so, and waits for the others. Raises JaxinferError where they do not come together, and
    ParameterError where host 0 cannot listen.
    """
    bound = _bound_address(coordinator)
    if host_id == 0:
        _check_free(bound)
    for name, value in _settings(coordinator).items():
        jax.config.update(name, value)
    try:
        jax.distributed.initialize(
            coordinator,
            num_hosts,
            host_id,
            cluster_detection_method="deactivate",
            coordinator_bind_address=bound,
        )
    except RuntimeError as error:
        raise JaxinferError(f"the hosts do not come together at {coordinator}: {error}") from error


def _settings(coordinator: str) -> dict[str, str | bool]:
    here = _own_address(coordinator)
    return {
        "jax_cpu_collectives_implementation": "gloo",
        "jax_enable_preemption_service": False,  # it would take SIGTERM, by which a server ends in order
        # What stages hand over to other hosts, where the platform has no way of its own (CPU).
        "jax_cross_host_transfer_socket_address": f"{here}:{_free_port(here)}",
        "jax_cross_host_transport_addresses": f"{here}:0",
    }


def _bound_address(coordinator: str) -> str:
    """Return the address that host 0 listens on: all interfaces, unless all hosts are on one machine."""
    own = ip_address(_own_address(coordinator).strip("[]"))
    return coordinator if own.is_loopback else f"[::]:{coordinator.rpartition(':')[2]}"


def _check_free(address: str) -> None:
    """JAX's service would end the process with a signal."""
    host, _, port = address.rpartition(":")
    family, _, _, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    try:
        socket.create_server(place, family=family).close()
    except OSError as error:
        raise ParameterError("coordinator", f"cannot listen on {address}: {os.strerror(error.errno or 0)}") from error


def _own_address(coordinator: str) -> str:
    """The address by which the coordinator's network knows this host."""
    host, _, port = coordinator.rpartition(":")
    family, kind, *_, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:  # connected, it has an address, and nothing was sent
        probe.connect(address)
        own = probe.getsockname()[0]
    return f"[{own}]" if ":" in own else own


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host.strip("[]"), 0))
        return probe.getsockname()[1]
