"""Team: the hosts of one engine, as its construction knows them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from jaxinfer.engine.device.leader import LeadingRunner
from jaxinfer.engine.device.runner import Runner
from jaxinfer.hosts.facts import Facts
from jaxinfer.hosts.launch import Place

if TYPE_CHECKING:  # one host needs no gRPC
    from jaxinfer.hosts.following import HostFollower
    from jaxinfer.hosts.leading import HostLeader


class Team(Protocol):
    """What hosts do together while each builds its part of an engine."""

    @property
    def place(self) -> Place | None:
        """Which host this is; None: there is one."""
        ...

    @property
    def num_hosts(self) -> int: ...

    def agree(self, phase: str, facts: Facts, counts: Sequence[int] = ()) -> tuple[int, ...]:
        """Waits until all hosts have come to the end of a phase, with equal facts; the least of each count."""
        ...

    def leading(self, runner: Runner) -> Runner:
        """What the scheduler calls in place of `runner`, once all hosts are ready to repeat its calls."""
        ...


class Alone:
    """One host."""

    place = None
    num_hosts = 1

    def agree(self, phase: str, facts: Facts, counts: Sequence[int] = ()) -> tuple[int, ...]:
        return tuple(counts)

    def leading(self, runner: Runner) -> Runner:
        return runner


ALONE = Alone()


class Leader:
    """Host 0, whose stream `hosts` all others have joined."""

    def __init__(self, place: Place, hosts: "HostLeader"):
        self.place = place
        self.num_hosts = place.num_hosts
        self._hosts = hosts

    def agree(self, phase: str, facts: Facts, counts: Sequence[int] = ()) -> tuple[int, ...]:
        return self._hosts.agree(phase, facts, counts).counts

    def leading(self, runner: Runner) -> Runner:
        self._hosts.agree("ready", {})
        self._hosts.serve()
        return LeadingRunner(runner, self._hosts.send, self._hosts.note_collected)


class Member:
    """Another host, which has joined by `stream`."""

    def __init__(self, place: Place, stream: "HostFollower"):
        self.place = place
        self.num_hosts = place.num_hosts
        self._stream = stream

    def agree(self, phase: str, facts: Facts, counts: Sequence[int] = ()) -> tuple[int, ...]:
        return self._stream.agree(phase, facts, counts).counts

    def leading(self, runner: Runner) -> Runner:
        raise AssertionError("host 0 schedules")
