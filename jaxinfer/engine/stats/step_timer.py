"""StepTimer: how the engine's thread spends its time."""

import time
from collections.abc import Callable

SCHEDULE, DISPATCH, CONSTRAIN, WAIT, APPLY, OTHER, IDLE = range(7)
"""Parts of that time: planning a step; packing and starting it; filling masks of its rows, which its sampling waits
for; waiting for the results of one; handing them out; everything else there is to do (commands, telling clients);
waiting for requests."""


class StepTimer:
    """Every nanosecond since the start belongs to one part.

    in_flight: whether a step is, which its owner says. clock: nanoseconds that only grow.
    """

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns):
        self._clock = clock
        self._last = clock()
        self._spent = [0] * (IDLE + 1)
        self._flown = 0
        self._starved = 0
        self.in_flight = False
        self._waiting = False

    def wait(self) -> None:
        """Count the time since the last call as `OTHER`; from now on the thread waits, for as long as it takes."""
        self.end(OTHER)
        self._waiting = True

    def end(self, part: int) -> None:
        """Count the time since the last call as `part`."""
        now = self._clock()
        passed = now - self._last
        self._last = now
        self._waiting = False
        self._spent[part] += passed
        if self.in_flight:
            self._flown += passed
        elif part != IDLE:
            self._starved += passed

    def seconds(self, part: int) -> float:
        """Spent on a part so far. May be asked in another thread while this one waits."""
        waited = self._clock() - self._last if part == IDLE and self._waiting else 0
        return (self._spent[part] + waited) * 1e-9

    @property
    def in_flight_seconds(self) -> float:
        """Seconds with at least one step dispatched and not read."""
        return self._flown * 1e-9

    @property
    def starved_seconds(self) -> float:
        """Seconds with no step in flight, though the thread had something to do."""
        return self._starved * 1e-9
