"""JAX's processes join: what is told before JAX would end the process."""

import socket

import pytest

from jaxinfer.build import build_engine
from jaxinfer.config import EngineConfig, HostsConfig
from jaxinfer.errors import ParameterError
from jaxinfer.parallel.distributed import join_processes


def test_a_port_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ParameterError, match=f"coordinator: cannot listen on {address}: Address already in use"):
            join_processes(address, 2, 0)


def test_an_engine_without_a_team_is_of_one_host() -> None:
    hosts = HostsConfig("127.0.0.1:8476", 2, 0)
    with pytest.raises(ParameterError, match="coordinator: several hosts are joined by `jaxinfer serve`"):
        build_engine(EngineConfig(hosts=hosts))
