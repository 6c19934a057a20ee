"""Team: the hosts of one engine, as its construction knows them."""

from collections.abc import Sequence
from typing import Protocol

from jaxinfer.engine.device.runner import Runner
from jaxinfer.engine.stats.hosts import HostReading
from jaxinfer.hosts.facts import Facts
from jaxinfer.hosts.launch import Place


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

    def fail(self, reason: str) -> None:
        """Tells the others that this host ends, though not in order: they do so, too."""
        ...

    def readings(self) -> Sequence[HostReading]:
        """Of each host now, host 0 first; none of one host."""
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
