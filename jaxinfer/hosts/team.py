"""Team: the hosts of one engine, as its construction knows them."""

from collections.abc import Sequence
from typing import Protocol

from jaxinfer.engine.device.runner import Runner
from jaxinfer.engine.stats.hosts import HostReading
from jaxinfer.hosts.facts import Facts
from jaxinfer.hosts.launch import HostPlace


class Team(Protocol):
    """Cooperation of hosts while each builds its part of an engine."""

    @property
    def place(self) -> HostPlace | None:
        """Place of this host among all; None: there is only one host."""
        ...

    @property
    def num_hosts(self) -> int: ...

    def agree(self, phase: str, facts: Facts, counts: Sequence[int] = ()) -> tuple[int, ...]:
        """Waits until all hosts have come to the end of a phase, with equal facts; the least of each count."""
        ...

    def leading(self, runner: Runner) -> Runner:
        """Return the runner that the scheduler calls in place of `runner`, once all hosts are ready to repeat its
        calls."""
        ...

    def fail(self, reason: str) -> None:
        """Tells the others that this host ends, though not in order: they do so, too."""
        ...

    def readings(self) -> Sequence[HostReading]:
        """Return the readings of each host now, host 0 first; none for one host."""
        ...


class Alone:
    """One host."""

    place = None
    num_hosts = 1

    def agree(self, phase: str, facts: Facts, counts: Sequence[int] = ()) -> tuple[int, ...]:
        return tuple(counts)

    def leading(self, runner: Runner) -> Runner:
        return runner

    def fail(self, reason: str) -> None:
        pass

    def readings(self) -> Sequence[HostReading]:
        return ()


ALONE = Alone()
