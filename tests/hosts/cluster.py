"""Hosts in one process: a leader and followers with simulated devices, joined over loopback."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc

from jaxinfer.engine.device.follower import Follower
from jaxinfer.engine.device.leader import LeadingRunner
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.hosts import messages
from jaxinfer.hosts.facts import Facts
from jaxinfer.hosts.following import HostFollower
from jaxinfer.hosts.leading import HostLeader
from jaxinfer.hosts.timing import HostTiming
from jaxinfer.rpc.channel import OPTIONS
from tests.engine.followed import Recorded
from tests.engine.small import small_shapes

FACTS = {"jaxinfer": "1", "mesh": "tensor=2"}
QUICK = HostTiming(heartbeat=0.1, silence=1.0, step=1.0, send=1.0, join=10.0, ready=10.0)
"""For tests of what takes too long."""
PATIENT = HostTiming(join=10.0, ready=10.0)
LOADED = "loaded"


def until(condition: Callable[[], bool], seconds: float = 7.0) -> None:
    """Waits until it holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class Losses:
    """Reasons that were told, as a host's `lost`. before: is called first."""

    def __init__(self) -> None:
        self.before: Callable[[], object] = lambda: None
        self.reasons: list[str] = []
        self.at = 0.0
        self._told = threading.Event()

    def __call__(self, reason: str) -> None:
        self.before()
        self.reasons.append(reason)
        self.at = time.monotonic()
        self._told.set()

    def wait(self, seconds: float = 7.0) -> str:
        """The one reason, which must come in time."""
        assert self._told.wait(seconds), "nothing was lost"
        assert len(self.reasons) == 1
        return self.reasons[0]


class FollowingHost(threading.Thread):
    """A follower's main program in a thread. error: how it ended."""

    def __init__(
        self, address: str, num_hosts: int, host_id: int, *, runner: Any, timing: HostTiming, facts: Facts = FACTS
    ):
        super().__init__(daemon=True)
        self.losses = Losses()
        self.error: Exception | None = None
        self.repeated: Any = Recorded(runner)
        self.follower = Follower(self.repeated)
        self.stream = HostFollower(num_hosts, host_id, facts, lost=self.losses, timing=timing)
        self._address = address

    def run(self) -> None:
        try:
            with self.stream:
                self.decisions = self.stream.join(self._address)
                self.agreement = self.stream.agree(LOADED, FACTS, (30, 20))
                self.stream.run(self.follower)
        except Exception as error:
            self.error = error

    def end(self) -> None:
        """Waits for its end."""
        self.join(10.0)
        assert not self.is_alive()


class Cluster:
    """A leader that serves, and its followers. runner: for an engine."""

    def __init__(
        self, leader: HostLeader, losses: Losses, hosts: list[FollowingHost], raw: list["RawFollower"], device: Any
    ):
        self.leader = leader
        self.losses = losses
        self.hosts = hosts
        self.raw = raw
        self.led: Any = Recorded(device)
        self.runner = LeadingRunner(self.led, leader.send, leader.note_collected, leader.check_failed)

    def lost_everywhere(self, seconds: float = 7.0) -> list[str]:
        """The reasons, the leader's first, which must come in time."""
        return [losses.wait(seconds) for losses in (self.losses, *(host.losses for host in self.hosts))]


@contextmanager
def cluster(
    num_followers: int,
    *,
    num_raw: int = 0,
    timing: HostTiming = PATIENT,
    most_behind: int = 64,
    runners: Callable[[int], Any] = lambda host_id: SimulatedRunner(small_shapes()),
    reach: Callable[[str], str] = lambda address: address,
) -> Iterator[Cluster]:
    """Hosts that serve. num_raw: those with the last ids are RawFollowers, in `raw`. runners: by host id. reach: the
    address by which followers reach the leader's."""
    num_hosts = 1 + num_followers + num_raw
    losses = Losses()
    with ExitStack() as stack:
        leader = stack.enter_context(
            HostLeader(
                num_hosts, FACTS, lost=losses, decisions={"backend": "x"}, timing=timing, most_behind=most_behind
            )
        )
        address = reach(leader.listen("127.0.0.1:0"))
        hosts = [
            FollowingHost(address, num_hosts, i, runner=runners(i), timing=timing) for i in range(1, num_followers + 1)
        ]
        for host in hosts:
            host.start()
        raw = [stack.enter_context(RawFollower(address, i, num_hosts)) for i in range(num_followers + 1, num_hosts)]
        for each in raw:
            each.send(messages.Ready(LOADED, dict(FACTS), (30, 20)))
        leader.wait_joined()
        leader.agree(LOADED, FACTS, (25, 25))
        leader.serve()
        yield Cluster(leader, losses, hosts, raw, runners(0))
        leader.close()
        for host in hosts:
            host.end()


class RawFollower:
    """Says what a test has it say, and nothing by itself. received: what the leader has sent."""

    def __init__(self, address: str, host_id: int, num_hosts: int, *, facts: Facts = FACTS, join: bool = True):
        self.received: list[messages.Down] = []
        self._outbox: list[bytes | None] = []
        self._changed = threading.Condition()
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        method = self._channel.stream_stream(f"/{messages.SERVICE}/{messages.METHOD}")
        self.call: Any = method(self._requests())
        self.ended = False
        threading.Thread(target=self._read, daemon=True).start()
        if join:
            self.send(messages.Join(host_id, num_hosts, dict(facts)))
            self.wait_for(messages.Accepted | messages.Refused)

    def __enter__(self) -> "RawFollower":
        return self

    def __exit__(self, *_: object) -> None:
        self.call.cancel()
        self._channel.close()
        self._put(None)

    def send(self, message: messages.Up) -> None:
        self._put(messages.encode(message))

    def send_bytes(self, data: bytes) -> None:
        self._put(data)

    def wait_for(self, kind: Any, seconds: float = 7.0) -> Any:
        """The first message of a kind."""
        with self._changed:
            found = self._changed.wait_for(
                lambda: next((m for m in self.received if isinstance(m, kind)), None), seconds
            )
        assert found, f"only {self.received[-3:]} came"
        return found

    def calls(self) -> list[bytes]:
        """Those received so far."""
        with self._changed:
            return [each for m in self.received if isinstance(m, messages.Calls) for each in m.messages]

    def _put(self, data: bytes | None) -> None:
        with self._changed:
            self._outbox.append(data)
            self._changed.notify_all()

    def _requests(self) -> Iterator[bytes]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._outbox)
                data = self._outbox.pop(0)
            if data is None:
                return
            yield data

    def _read(self) -> None:
        try:
            for data in self.call:
                with self._changed:
                    self.received.append(messages.decode_down(data))
                    self._changed.notify_all()
        except grpc.RpcError:
            pass
        finally:
            self.ended = True
