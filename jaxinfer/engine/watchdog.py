"""Watchdog: notices who has been silent for too long."""

import contextlib
import faulthandler
import signal
import sys
import time
from collections.abc import Callable

STACKS = signal.SIGUSR1
"""The signal that asks a process for the stacks of its threads."""
STACKS_AND_END = signal.SIGUSR2
"""The signal that ends a process once it has written them: one that was stopped must not serve again meanwhile."""

_MOST_INTERVAL = 1.0


class Watchdog:
    """Expires where nobody has fed it for `seconds`, which must be above 0.

    Its watcher asks `expired` every `interval` seconds. Of a gap between two calls at most twice the interval counts: a
    watcher that did not run itself, since a laptop slept or the machine was busy, does not blame others. clock: seconds
    that only grow.
    """

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic):
        self.seconds = seconds
        self.interval = min(seconds / 12, _MOST_INTERVAL)
        self._clock = clock
        self._last = clock()
        self._silent = 0.0

    def feed(self) -> None:
        """Who is watched has shown that it runs."""
        self._last = self._clock()
        self._silent = 0.0

    def expired(self) -> bool:
        """True once it has been silent for too long."""
        now = self._clock()
        self._silent += min(now - self._last, 2 * self.interval)
        self._last = now
        return self._silent >= self.seconds


def dump_stacks_on_signal() -> None:
    """From now on STACKS makes this process write where each of its threads is to standard error, and go on.

    So does STACKS_AND_END, which then ends it, as that signal does by default.
    """
    with contextlib.suppress(OSError, RuntimeError):  # there is no standard error
        faulthandler.register(STACKS, all_threads=True)
        faulthandler.register(STACKS_AND_END, all_threads=True, chain=True)


def dump_stacks() -> None:
    """Writes where each thread of this process is to standard error, where there is one."""
    if sys.__stderr__ is not None:
        with contextlib.suppress(OSError, ValueError):
            faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
