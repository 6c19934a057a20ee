"""Hosts in one process: every follower repeats the leader's calls, and metrics tell how far behind it is."""

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from jaxinfer.engine.device.calls import InitSlots
from jaxinfer.engine.device.follower import Follower
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.hosts import messages
from tests.engine.followed import FailingCalls, assert_same
from tests.engine.small import VOCABULARY, ask, run, small_core, small_shapes
from tests.engine.toy_grammar import Toy, ToyConstraints
from tests.hosts.cluster import QUICK, Cluster, cluster, until

pytestmark = pytest.mark.timeout(60)


def serve_requests(hosts: Cluster, num_requests: int = 8) -> None:
    """An engine on the leader's runner answers requests, some of which have grammars."""
    core = small_core(hosts.runner, ahead=1, constraints=ToyConstraints(VOCABULARY))
    for i in range(num_requests):
        grammar = Toy(i, 12).constraint if i % 3 == 2 else None
        core.add_request(ask(f"r{i}", 3 + 3 * i, 10, n=1 + i % 3, seed=i, structured_outputs=grammar))
    run(core)


@pytest.mark.parametrize("num_followers", [1, 3])
def test_followers_repeat_every_step(num_followers: int) -> None:
    with cluster(num_followers, timing=QUICK) as hosts:
        serve_requests(hosts)
        until(lambda: all(state.calls_behind == 0 for state in hosts.leader.states()))
        until(lambda: all(host.follower.num_in_flight == 0 for host in hosts.hosts))
    assert len(hosts.led.calls) > 30
    for host in hosts.hosts:
        assert host.error is None
        assert_same(host.repeated.calls, hosts.led.calls)
        assert_same(vars(host.follower.stream), vars(hosts.runner.stream))
        assert len(hosts.led.results) == len(host.repeated.results)
        for own, others in zip(hosts.led.results, host.repeated.results, strict=True):
            assert_same(own, others)
        assert host.losses.reasons == []
    assert hosts.losses.reasons == []


def test_followers_go_on_after_a_fault_of_the_leader() -> None:
    """Its reset is a call like others."""
    device = FailingCalls(SimulatedRunner(small_shapes()))
    with cluster(2, timing=QUICK, runners=lambda i: SimulatedRunner(small_shapes()) if i else device) as hosts:
        device.fail_once("dispatched", after=20)
        core = small_core(hosts.runner, ahead=1)
        for i in range(6):
            core.add_request(ask(f"r{i}", 3 + 3 * i, 10, seed=i))
        run(core)
        assert core.stats().core.step_faults == 1
        until(lambda: all(state.calls_behind == 0 for state in hosts.leader.states()))
        until(lambda: all(host.follower.num_in_flight == 0 for host in hosts.hosts))
    for host in hosts.hosts:
        assert host.error is None
        assert_same(host.repeated.calls, hosts.led.calls)
        assert_same(host.repeated.results[-1], hosts.led.results[-1])


def test_hosts_agree_on_the_least_counts() -> None:
    with cluster(2) as hosts:
        pass
    for host in hosts.hosts:
        assert host.decisions == {"backend": "x"}
        assert host.agreement.counts == (25, 20)


def test_the_last_steps_are_collected_though_no_call_follows() -> None:
    with cluster(1, timing=QUICK) as hosts:
        serve_requests(hosts)
        until(lambda: len(hosts.hosts[0].repeated.results[-1]) == len(hosts.led.results[-1]))
        until(lambda: hosts.hosts[0].follower.num_in_flight == 0)
        assert hosts.hosts[0].follower.collected is not None


def test_metrics_of_a_host() -> None:
    with cluster(1, num_raw=1, most_behind=10_000) as hosts:
        raw = hosts.raw[0]
        serve_requests(hosts)
        number = hosts.runner.stream.number
        until(lambda: hosts.leader.states()[0].step_skew is not None)
        follower, silent = hosts.leader.states()
        assert (follower.host_id, silent.host_id) == (1, 2)
        assert silent.calls_behind == number
        assert silent.step_skew is None
        assert follower.step_skew is not None
        assert abs(follower.step_skew) < 5
        assert 0 <= silent.heartbeat_age < 5
        assert "127.0.0.1" in silent.peer
        until(lambda: len(raw.calls()) == number)
        time.sleep(0.2)
        own = Follower(SimulatedRunner(small_shapes()))
        for call in raw.calls():
            own.apply(call)
        assert own.collected is not None
        raw.send(messages.Progress(number, own.stream.digest, own.collected, False, False))
        until(lambda: hosts.leader.states()[1].calls_behind == 0)
        silent = hosts.leader.states()[1]
        assert silent.step_skew is not None
        assert 0.2 < silent.step_skew < 5
        assert silent.heartbeat_age < 5


def test_a_host_that_collects_first_has_a_skew_below_0() -> None:
    with cluster(0, num_raw=1) as hosts:
        hosts.runner.submit(InitSlots(_no_slots()))
        hosts.raw[0].wait_for(messages.Calls)
        hosts.raw[0].send(messages.Progress(1, hosts.runner.stream.digest, 0, False, False))
        until(lambda: hosts.leader.states()[0].calls_behind == 0)
        time.sleep(0.1)
        hosts.leader.note_collected(0)
        skew = hosts.leader.states()[0].step_skew
        assert skew is not None
        assert -5 < skew <= -0.1


def test_the_leader_is_not_delayed_by_a_follower_within_the_bound() -> None:
    with cluster(0, num_raw=1, most_behind=8) as hosts:
        start = time.monotonic()
        for _ in range(8):
            hosts.runner.submit(InitSlots(_no_slots()))
        assert time.monotonic() - start < 1


def test_a_follower_at_the_bound_delays_the_leader_until_it_goes_on() -> None:
    with cluster(0, num_raw=1, most_behind=4) as hosts:
        digests = []
        for _ in range(4):
            hosts.runner.submit(InitSlots(_no_slots()))
            digests.append(hosts.runner.stream.digest)
        until(lambda: len(hosts.raw[0].calls()) == 4)
        start = time.monotonic()
        timer = _after(0.3, lambda: hosts.raw[0].send(messages.Progress(1, digests[0], None, False, False)))
        hosts.runner.submit(InitSlots(_no_slots()))
        assert 0.25 < time.monotonic() - start < 5
        timer.join()
        assert hosts.losses.reasons == []


def _after(seconds: float, do: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, do)
    timer.start()
    return timer


def _no_slots() -> np.ndarray:
    """An argument of `init_slots`; no step follows that would read it."""
    return np.zeros(3, np.int32)
