"""Watch: one reason why hosts are lost, and a thread that tells it once."""

import threading
from collections.abc import Callable

from jaxinfer.hosts.errors import HostLostError

_TELL_SECONDS = 0.25
"""Other hosts get the reason within it, or never."""


class Watch:
    """A condition, `changed`, that guards what its owner knows of other hosts, and the first reason why one is lost.

    check: is called with the condition held, every `interval` seconds and at once when something is lost; a reason is
    what it returns, or None. told: true once the other hosts have the reason, or have ended by it; asked with the
    condition held. lost: is called once, in the watch's thread, after that; `close` waits for it.
    """

    def __init__(
        self,
        lost: Callable[[str], None],
        *,
        check: Callable[[], str | None],
        told: Callable[[], bool],
        interval: float,
    ):
        self._lock = threading.RLock()
        self._conditions: list[threading.Condition] = []
        self.changed = self.condition()
        self._ended = self.condition()
        self.reason: str | None = None
        self.closed = False
        self._fails = False
        """This host is the one that is lost, and knows it."""
        self._lost = lost
        self._check = check
        self._told = told
        self._interval = interval
        self._thread = threading.Thread(target=self._run, name="hosts-watch", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """True once a host is lost, or the owner was closed."""
        return self.closed or self.reason is not None

    def condition(self) -> threading.Condition:
        """Another condition with the lock of `changed`; who waits for it is woken at the end, too."""
        self._conditions.append(threading.Condition(self._lock))
        return self._conditions[-1]

    def error(self) -> HostLostError:
        """Return the error for callers that go on once it is over."""
        return HostLostError(self.reason or "the streams to other hosts are closed")

    def lose(self, reason: str) -> None:
        """A host is lost. Later reasons, and those that closing brings, are dropped."""
        with self.changed:
            if not self.over:
                self.reason = reason
                self._notify_end()

    def fail(self, reason: str) -> None:
        """This host fails, and ends in its own way: the others get the reason, and `lost` is not called."""
        with self.changed:
            if not self.over:
                self._fails = True
                self.lose(reason)

    def close(self) -> None:
        """The owner has closed; waits until a reason is told."""
        with self.changed:
            self.closed = True
            self._notify_end()
        if threading.current_thread() is not self._thread:  # `lost` may close
            self._thread.join()

    def _notify_end(self) -> None:
        for each in self._conditions:
            each.notify_all()

    def _run(self) -> None:
        with self.changed:
            while not self.over:
                self._ended.wait(self._interval)
                if not self.over and (reason := self._check()) is not None:
                    self.lose(reason)
            if self.reason is None:
                return
            self.changed.wait_for(self._told, _TELL_SECONDS)
        if not self._fails:
            self._lost(self.reason)
