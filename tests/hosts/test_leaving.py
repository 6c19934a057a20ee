"""A host that has left keeps no call of gRPC: one that is deleted as the process ends may keep it from ending."""

import gc
from collections.abc import Callable, Iterator

import grpc
import pytest

from jaxinfer.hosts.errors import HostLostError, HostsError
from jaxinfer.hosts.following import HostFollower
from jaxinfer.hosts.leading import HostLeader
from tests.hosts.cluster import FACTS, PATIENT, QUICK, Losses, cluster

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def num_calls() -> Iterator[Callable[[], int]]:
    """Of the test. Nothing is collected that refers to itself."""
    gc.collect()
    gc.disable()
    before = calls()
    yield lambda: sum(all(each is not other for other in before) for each in calls())
    gc.enable()


def calls() -> list[grpc.Call]:
    return [each for each in gc.get_objects() if issubclass(type(each), grpc.Call)]


def test_after_the_end(num_calls: Callable[[], int]) -> None:
    with cluster(2) as hosts:
        assert num_calls() == 2
    assert all(host.error is None for host in hosts.hosts)
    assert num_calls() == 0


def test_after_host_0_is_lost(num_calls: Callable[[], int]) -> None:
    with cluster(1, timing=QUICK) as hosts:
        hosts.leader.fail("it was told to")
        hosts.hosts[0].end()
    assert isinstance(hosts.hosts[0].error, HostLostError)
    assert num_calls() == 0


@pytest.mark.parametrize("key", ["another", None])
def test_after_it_was_refused(num_calls: Callable[[], int], key: str | None) -> None:
    leader = HostLeader(2, FACTS, lost=Losses(), key="k", timing=PATIENT)
    with leader, HostFollower(2, 1, FACTS, lost=Losses(), key=key, timing=PATIENT) as follower:
        with pytest.raises(HostsError):
            follower.join(leader.listen("127.0.0.1:0"))
        assert num_calls() == 1
    assert num_calls() == 0
