"""Whatever is wrong with one host, all are told one reason, once, in time; and nothing hangs."""

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jaxinfer.engine.device.call_stream import CallWriter
from jaxinfer.engine.device.calls import InitSlots, Write
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.errors import ModelError
from jaxinfer.hosts import messages
from jaxinfer.hosts.errors import HostLostError
from jaxinfer.hosts.leading import HostLeader
from tests.engine.followed import FailingCalls
from tests.engine.small import ask, run, small_core, small_shapes
from tests.hosts import following_host, stopped_hosts
from tests.hosts.cluster import FACTS, PATIENT, QUICK, Cluster, Losses, cluster, until
from tests.hosts.proxy import Proxy
from tests.material import REPOSITORY

pytestmark = pytest.mark.timeout(60)

DETECTED_AT_ONCE = 3.0
"""Seconds, on a busy machine, for what needs no silence: with PATIENT, silence takes 6."""
CALL = InitSlots(np.zeros(3, np.int32))


def serve_requests(hosts: Cluster) -> None:
    core = small_core(hosts.runner, ahead=1)
    for i in range(4):
        core.add_request(ask(f"r{i}", 5 + i, 12))
    run(core)


def serve_for_ever(hosts: Cluster) -> None:
    while True:
        serve_requests(hosts)


def send_calls(hosts: Cluster, count: int = 1) -> None:
    for _ in range(count):
        hosts.runner.submit(CALL)


def assert_over(hosts: Cluster) -> None:
    """No call can be sent, and followers have ended."""
    with pytest.raises(HostLostError):
        send_calls(hosts)
    for host in hosts.hosts:
        host.end()
        assert isinstance(host.error, HostLostError)


@pytest.mark.parametrize("num_followers", [1, 3])
def test_a_failed_call_ends_all_hosts(num_followers: int) -> None:
    device = FailingCalls(SimulatedRunner(small_shapes()))
    device.fail_once("dispatch", after=9)
    with cluster(num_followers, runners=lambda i: device if i == 1 else SimulatedRunner(small_shapes())) as hosts:
        with pytest.raises(HostLostError, match=r"host 1: call 9, .*, failed with StepBroke"):
            serve_for_ever(hosts)
        reasons = hosts.lost_everywhere(DETECTED_AT_ONCE)
        assert set(reasons) == {reasons[0]}
        assert_over(hosts)


def test_a_failed_step_ends_all_hosts() -> None:
    device = FailingCalls(SimulatedRunner(small_shapes()))
    device.fail_once("collect")
    with cluster(2, runners=lambda i: device if i == 2 else SimulatedRunner(small_shapes())) as hosts:
        with pytest.raises(HostLostError):
            serve_for_ever(hosts)
        assert all("host 2: the step of call " in reason for reason in hosts.lost_everywhere(DETECTED_AT_ONCE))


@pytest.mark.parametrize("at", [0, 4, 9, 12, -1])
def test_a_flipped_bit_is_found_in_its_message(at: int) -> None:
    """Before a runner sees it."""
    with cluster(2) as hosts:
        send = hosts.leader.send
        writer = CallWriter()
        for _ in range(5):
            send(writer.write(CALL))
        message = bytearray(writer.write(CALL))
        message[at] ^= 0x10
        send(bytes(message))
        reasons = hosts.lost_everywhere(DETECTED_AT_ONCE)
        assert all("number: the message has" in reason or "digest of call 5" in reason for reason in reasons)
        assert_over(hosts)
        # The first to find it ends the others.
        assert max(len(host.repeated.calls) for host in hosts.hosts) == 5


def test_another_digest_ends_all_hosts() -> None:
    with cluster(2, num_raw=1) as hosts:
        send_calls(hosts, 3)
        digest = hosts.runner.stream.digest
        until(lambda: len(hosts.raw[0].calls()) == 3)
        hosts.raw[0].send(messages.Progress(3, digest ^ 1, None, False, False))
        expected = f"the digest of calls up to 2 is {digest ^ 1:#010x} on host 3 and {digest:#010x} on host 0"
        assert hosts.lost_everywhere(DETECTED_AT_ONCE) == [expected] * 3
        assert hosts.raw[0].wait_for(messages.Lost).reason == expected
        assert_over(hosts)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (messages.encode(messages.Progress(9, 0, None, False, False)), "reports 9 calls; 0 were .* 1 were sent"),
        (messages.encode(messages.Join(2, 3, {})), "has sent Join in the midst"),
        (b"\xc1", "its message cannot be read"),
    ],
)
def test_a_message_that_cannot_be_ends_all_hosts(data: bytes, text: str) -> None:
    with cluster(1, num_raw=1) as hosts:
        send_calls(hosts)
        hosts.raw[0].wait_for(messages.Calls)
        hosts.raw[0].send_bytes(data)
        reasons = hosts.lost_everywhere(DETECTED_AT_ONCE)
        assert set(reasons) == {reasons[0]}
        assert re.search(f"host 2.* {text}", reasons[0])


def test_a_silent_follower_is_lost() -> None:
    """Its stream stays open, and it was sent all calls."""
    with cluster(1, num_raw=1, timing=QUICK) as hosts:
        start = time.monotonic()
        assert hosts.lost_everywhere() == ["host 2 was silent for 1 s"] * 2
        assert 0.9 < hosts.losses.at - start < 4
        assert_over(hosts)


def test_a_follower_that_is_heard_is_not_lost() -> None:
    """Heartbeats suffice, both ways; nothing is sent for longer than the silence allowed."""
    with cluster(1, timing=QUICK) as hosts:
        time.sleep(2.5)
        serve_requests(hosts)
        assert hosts.losses.reasons == hosts.hosts[0].losses.reasons == []


def test_a_connection_without_power_is_lost_on_both_sides() -> None:
    proxies: list[Proxy] = []
    with cluster(1, timing=QUICK, reach=_through(proxies)) as hosts:
        serve_requests(hosts)
        # Until it has heard that they serve, a follower is as patient as while it loads.
        until(lambda: hosts.leader.states()[0].calls_behind == 0)
        proxies[0].stall()
        assert hosts.losses.wait() == "host 1 was silent for 1 s"
        assert hosts.hosts[0].losses.wait() == "host 1: host 0 was silent for 1 s"
        assert_over(hosts)
    proxies[0].cut()


def test_a_cut_connection_is_lost_on_both_sides() -> None:
    proxies: list[Proxy] = []
    with cluster(1, reach=_through(proxies)) as hosts:
        serve_requests(hosts)
        proxies[0].cut()
        assert hosts.losses.wait(DETECTED_AT_ONCE) == "host 1: its stream has ended"
        assert "host 1: the stream from host 0 has ended" in hosts.hosts[0].losses.wait(DETECTED_AT_ONCE)
        assert_over(hosts)


def test_a_cut_stream_ends_the_other_hosts() -> None:
    with cluster(2, num_raw=1) as hosts:
        hosts.raw[0].call.cancel()
        assert hosts.lost_everywhere(DETECTED_AT_ONCE) == ["host 3: its stream has ended"] * 3
        assert_over(hosts)


def test_a_follower_that_leaves_ends_all_hosts() -> None:
    with cluster(2) as hosts:
        hosts.hosts[0].stream.close()
        assert hosts.losses.wait(DETECTED_AT_ONCE) == "host 1 is ending"
        assert hosts.hosts[1].losses.wait(DETECTED_AT_ONCE) == "host 1 is ending"
        assert hosts.hosts[0].losses.reasons == []  # it knows


def test_a_host_that_fails_tells_the_others_why_and_ends_in_its_own_way() -> None:
    with cluster(2) as hosts:
        hosts.leader.fail("its engine has stopped")
        for host in hosts.hosts:
            assert host.losses.wait(DETECTED_AT_ONCE) == "host 0 has failed: its engine has stopped"
        assert_over(hosts)
        hosts.leader.close()
        assert hosts.losses.reasons == []  # it knows


@pytest.mark.parametrize(
    ("error", "text"), [(ModelError("no weights"), "no weights"), (OSError("the disk is on fire"), "OSError: the disk")]
)
def test_an_error_in_the_midst_is_told_to_the_others(error: Exception, text: str) -> None:
    with cluster(2) as hosts:
        with pytest.raises(type(error)), hosts.hosts[0].stream:
            raise error
        for losses in (hosts.losses, hosts.hosts[1].losses):
            assert losses.wait(DETECTED_AT_ONCE).startswith(f"host 1 has failed: {text}")
        assert hosts.hosts[0].losses.reasons == []


def test_a_leader_that_is_killed_ends_its_followers() -> None:
    with cluster(2) as hosts:
        hosts.leader._server.stop(None)  # type: ignore[union-attr]
        for host in hosts.hosts:
            assert "the stream from host 0 has ended" in host.losses.wait(DETECTED_AT_ONCE)
            host.end()


def test_a_leader_that_ends_in_order_loses_nobody() -> None:
    with cluster(2) as hosts:
        serve_requests(hosts)
    time.sleep(0.3)
    for host in hosts.hosts:
        assert host.error is None
        assert host.losses.reasons == []
    assert hosts.losses.reasons == []
    with pytest.raises(HostLostError, match="the streams to other hosts are closed"):
        hosts.leader.send(b"")


def test_a_call_may_be_large() -> None:
    """By default gRPC takes 4 MiB."""
    with cluster(1, runners=lambda i: _Plain(small_shapes())) as hosts:
        hosts.runner.submit(InitSlots(np.zeros(8 * 2**20, np.int32)))
        until(lambda: hosts.leader.states()[0].calls_behind == 0)


class Stuck(SimulatedRunner):
    """A runner whose third call does not return until `go` is set."""

    def __init__(self) -> None:
        super().__init__(small_shapes())
        self.go = threading.Event()
        self.count = 0

    def write(self, call: Write) -> None:
        self.count += 1
        if self.count == 3:
            self.go.wait(30)


def _stuck(i: int, device: Stuck) -> Any:
    return device if i == 1 else _Plain(small_shapes())


class _Plain(SimulatedRunner):
    """Of which no step is run."""

    def write(self, call: Write) -> None:
        pass


def test_a_call_that_takes_too_long_ends_all_hosts() -> None:
    """Though the follower's heart beats, and it is not behind by more than is allowed."""
    device = Stuck()
    with cluster(2, timing=QUICK, runners=lambda i: _stuck(i, device)) as hosts:
        send_calls(hosts, 3)
        reasons = hosts.lost_everywhere()
        assert set(reasons) == {"host 1 has made no progress for 1 s; it has performed 2 of 3 calls"}
        device.go.set()
        assert_over(hosts)


def test_compiling_is_no_stall() -> None:
    device = Stuck()
    device.compiling = True
    with cluster(1, timing=QUICK, runners=lambda i: _stuck(i, device)) as hosts:
        send_calls(hosts, 3)
        time.sleep(2.5)
        assert hosts.losses.reasons == []
        device.go.set()


def test_a_follower_that_stays_behind_ends_all_hosts() -> None:
    device = Stuck()
    timing = PATIENT._replace(send=0.5)
    with cluster(1, timing=timing, most_behind=4, runners=lambda i: _stuck(i, device)) as hosts:
        send_calls(hosts, 4)
        start = time.monotonic()
        with pytest.raises(HostLostError, match=r"host 1 was 4 calls behind for 0\.5 s"):
            send_calls(hosts, 3)
        assert 0.4 < time.monotonic() - start < 3
        assert len(set(hosts.lost_everywhere(DETECTED_AT_ONCE))) == 1
        device.go.set()


def test_a_sender_that_waits_is_released_when_a_host_is_lost() -> None:
    with cluster(0, num_raw=1, most_behind=1) as hosts:
        send_calls(hosts)
        threading.Timer(0.3, hosts.raw[0].call.cancel).start()
        start = time.monotonic()
        with pytest.raises(HostLostError, match="host 1: its stream has ended"):
            send_calls(hosts)
        assert time.monotonic() - start < DETECTED_AT_ONCE


def test_all_are_told_before_the_leader_is() -> None:
    """Its program may end at once."""
    with cluster(0, num_raw=2) as hosts:
        seen: list[bool] = []
        other = hosts.raw[1]
        hosts.losses.before = lambda: seen.append(bool(other.wait_for(messages.Lost, 1.0)))
        hosts.raw[0].call.cancel()
        hosts.losses.wait(DETECTED_AT_ONCE)
        assert seen == [True]


def test_an_engine_ends_when_a_host_is_lost() -> None:
    """`send` fails its step, and the reset after it."""
    with cluster(0, num_raw=1, most_behind=10_000) as hosts:
        core = small_core(hosts.runner, ahead=1)
        core.add_request(ask("a", 5, 40))
        core.step()
        hosts.raw[0].send(messages.Leave("host 1: no more power"))
        hosts.losses.wait(DETECTED_AT_ONCE)
        with pytest.raises(HostLostError, match="host 1: no more power"):
            run(core)


def test_hosts_that_were_all_stopped_go_on() -> None:
    """As on a laptop that sleeps, for longer than silence is allowed."""
    command = [sys.executable, "-m", stopped_hosts.__name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "serving\n"
            process.send_signal(signal.SIGSTOP)
            time.sleep(2.5)
            process.send_signal(signal.SIGCONT)
            time.sleep(0.5)
            assert process.communicate("\n", timeout=10)[0] == "[]\n"
        finally:
            process.kill()


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "text", "seconds"),
    [(signal.SIGSTOP, "host 1 was silent for 6 s", 7.0), (signal.SIGKILL, "host 1: its stream has ended", 1.0)],
)
def test_a_process_is_lost_in_time(number: signal.Signals, text: str, seconds: float) -> None:
    """By the settings that servers have, on the leader and on the other follower."""
    losses = Losses()
    with HostLeader(3, FACTS, lost=losses) as leader:
        command = [sys.executable, "-m", following_host.__name__, leader.listen("127.0.0.1:0")]
        children = [
            subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) for i in (1, 2)
        ]
        try:
            leader.wait_joined()
            leader.serve()
            time.sleep(1.0)
            children[0].send_signal(number)
            start = time.monotonic()
            other = children[1].stdout
            assert other is not None
            assert (losses.wait(10.0), other.readline()) == (text, f"{text}\n")
            assert time.monotonic() - start < seconds
            assert losses.at - start < seconds
        finally:
            for child in children:
                child.kill()
                child.wait()


def _through(proxies: list[Proxy]) -> Callable[[str], str]:
    def reach(address: str) -> str:
        proxies.append(Proxy(address))
        return proxies[0].address

    return reach


@pytest.mark.parametrize("lost", [True, False])
def test_a_step_that_fails_since_a_host_is_lost_says_so(lost: bool) -> None:
    """Though what it fails with comes first: the end of a connection of JAX's own."""
    proxies: list[Proxy] = []

    def failing(index: int) -> None:
        raise RuntimeError("connection closed")

    with cluster(1, reach=_through(proxies)) as hosts:
        hosts.led.collect = failing
        if lost:
            threading.Timer(0.1, proxies[0].cut).start()
        with pytest.raises(HostLostError if lost else RuntimeError, match="host 1" if lost else "connection closed"):
            hosts.runner.collect(0)
