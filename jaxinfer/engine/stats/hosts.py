"""Host 0's knowledge of the hosts of its engine."""

from typing import NamedTuple


class HostReading(NamedTuple):
    """One host. devices: those of the engine's that it has. calls_behind: calls of host 0 that it has not performed
    yet. step_skew: seconds by which it collected a step later than host 0, of the last step that both have collected.
    heartbeat_age: seconds since it was heard."""

    devices: int
    calls_behind: int = 0
    step_skew: float = 0.0
    heartbeat_age: float = 0.0
