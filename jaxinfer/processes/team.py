"""The two kinds of hosts of one engine, while each builds its part."""

from collections.abc import Sequence

from jaxinfer.engine.device.leader import LeadingRunner
from jaxinfer.engine.device.runner import Runner
from jaxinfer.engine.stats.hosts import HostReading
from jaxinfer.hosts.facts import Facts
from jaxinfer.hosts.following import HostFollower
from jaxinfer.hosts.launch import HostPlace
from jaxinfer.hosts.leading import HostLeader


class Leader:
    """Host 0, whose stream `hosts` all others have joined. devices: of each host."""

    def __init__(self, place: HostPlace, hosts: HostLeader, devices: int):
        self.place = place
        self._devices = devices
        self.num_hosts = place.num_hosts
        self._hosts = hosts

    def agree(self, phase: str, facts: Facts, counts: Sequence[int] = ()) -> tuple[int, ...]:
        return self._hosts.agree(phase, facts, counts).counts

    def leading(self, runner: Runner) -> Runner:
        self._hosts.agree("ready", {})
        self._hosts.serve()
        return LeadingRunner(runner, self._hosts.send, self._hosts.note_collected, self._hosts.check_failed)

    def fail(self, reason: str) -> None:
        self._hosts.fail(reason)

    def readings(self) -> Sequence[HostReading]:
        others = (
            HostReading(self._devices, each.calls_behind, each.step_skew or 0.0, each.heartbeat_age)
            for each in self._hosts.states()
        )
        return (HostReading(self._devices), *others)


class TeamMember:
    """Another host, which has joined by `stream`."""

    def __init__(self, place: HostPlace, stream: HostFollower):
        self.place = place
        self.num_hosts = place.num_hosts
        self._stream = stream

    def agree(self, phase: str, facts: Facts, counts: Sequence[int] = ()) -> tuple[int, ...]:
        return self._stream.agree(phase, facts, counts).counts

    def leading(self, runner: Runner) -> Runner:
        raise AssertionError("host 0 schedules")

    def fail(self, reason: str) -> None:
        self._stream.fail(reason)

    def readings(self) -> Sequence[HostReading]:
        return ()
