"""Times that hosts wait for each other."""

import math
from typing import NamedTuple

_LOADING = 10
"""Factor by which a host may be silent for longer before it serves: loading holds Python's lock for seconds at
times."""


class HostTiming(NamedTuple):
    """Seconds. heartbeat: between signs of life, at most. silence: after which a host is lost. step: a host may perform
    one call, or wait for one step, for so long; 0: for any time. send: a host may be too far behind for so long. join,
    ready: host 0 waits for the others to join, and to end a phase of their start; they wait as long for host 0. notice:
    between the lines by which host 0 says who has not joined."""

    heartbeat: float = 2.0
    silence: float = 6.0
    step: float = 120.0
    send: float = 10.0
    join: float = 300.0
    notice: float = 15.0
    ready: float = 3600.0

    @property
    def step_or_ever(self) -> float:
        """Seconds of `step`, as a Watchdog takes them: infinity for none."""
        return self.step or math.inf

    def silence_at(self, *, serving: bool) -> float:
        """Return the seconds that a host may be silent."""
        return self.silence if serving else _LOADING * self.silence


TIMING = HostTiming()
