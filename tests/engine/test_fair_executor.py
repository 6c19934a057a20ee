"""FairExecutor: whose job goes next, who waits for whom, and what has waited too long. Jobs end when they are told."""

import threading
from collections.abc import Callable

import pytest

from jaxinfer.engine.client.fair_executor import FairExecutor, Tenant
from jaxinfer.errors import QueueFullError

A, B, C = ("a",), ("b",), ("c",)
SECONDS = 20.0
"""After which a test that hangs fails."""


class Bench:
    """Jobs of an executor with a clock of its own, each of which takes the seconds that it is ended with."""

    def __init__(self, threads: int = 2, most_seconds: float = 30.0):
        self.now = 0.0
        self.executor = FairExecutor(threads, most_seconds, "test", lambda: self.now)
        self.begun: list[str] = []
        self.late: dict[str, QueueFullError] = {}
        self._changed = threading.Condition()
        self._ending: set[str] = set()

    def submit(self, tenant: Tenant, name: str) -> None:
        self.executor.submit(tenant, lambda: self._run(name), self._refuse(name))

    def _refuse(self, name: str) -> Callable[[QueueFullError], None]:
        def refuse(error: QueueFullError) -> None:
            with self._changed:
                self.late[name] = error
                self._changed.notify_all()

        return refuse

    def _run(self, name: str) -> None:
        with self._changed:
            self.begun.append(name)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: name in self._ending, SECONDS)

    def end(self, name: str, seconds: float = 0.0) -> None:
        """Ends a job that has begun, so many seconds later."""
        with self._changed:
            self.now += seconds
            self._ending.add(name)
            self._changed.notify_all()

    def wait(self, *begun: str) -> None:
        """Until just these have begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: sorted(self.begun) == sorted(begun), SECONDS), self.begun

    def wait_late(self, *names: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.late.keys() == {*names}, SECONDS), self.late

    def close(self) -> None:
        for name in list(self.begun):
            self.end(name)
        self.executor.shutdown()


def test_a_tenant_with_many_slow_jobs_leaves_a_thread_to_others() -> None:
    bench = Bench()
    for number in range(23):
        bench.submit(A, f"a{number}")
    bench.wait("a0")
    bench.submit(B, "b0")
    bench.wait("a0", "b0")
    bench.submit(C, "c0")
    bench.end("b0", 0.1)
    bench.wait("a0", "b0", "c0")
    bench.close()


def test_who_has_taken_least_goes_next() -> None:
    bench = Bench()
    bench.submit(A, "a0")
    bench.wait("a0")
    bench.submit(B, "b0")
    bench.wait("a0", "b0")
    for tenant, name in ((A, "a1"), (B, "b1"), (A, "a2"), (C, "c0")):
        bench.submit(tenant, name)
    bench.end("a0", 8.0)  # b1 has its tenant's thread to wait for; c has taken nothing
    bench.wait("a0", "b0", "c0")
    bench.end("c0", 0.1)
    bench.wait("a0", "b0", "c0", "a1")
    bench.end("b0", 0.1)
    bench.wait("a0", "b0", "c0", "a1", "b1")
    bench.close()


@pytest.mark.parametrize("nobody", [(), ("",)])
def test_jobs_of_nobody_may_have_all_threads(nobody: Tenant) -> None:
    bench = Bench()
    for number in range(3):
        bench.submit(nobody, str(number))
    bench.wait("0", "1")
    bench.end("1")
    bench.wait("0", "1", "2")
    bench.close()


def test_what_has_waited_too_long_is_told_so_and_never_runs() -> None:
    bench = Bench(most_seconds=30)
    for name in ("a0", "a1", "a2"):
        bench.submit(A, name)
    bench.wait("a0")
    bench.end("a0", 31)
    bench.wait_late("a1", "a2")
    assert bench.late["a1"].retry_after == 30
    bench.submit(A, "a3")
    bench.wait("a0", "a3")
    bench.close()


def test_what_would_wait_too_long_is_refused_at_once() -> None:
    """By what its tenant's jobs take; another tenant's is taken."""
    bench = Bench(most_seconds=30)
    bench.submit(A, "a0")
    bench.submit(A, "a1")
    bench.wait("a0")
    bench.end("a0", 16)
    bench.wait("a0", "a1")
    bench.submit(A, "a2")
    with pytest.raises(QueueFullError) as refused:
        bench.submit(A, "a3")
    assert refused.value.retry_after == 2
    bench.submit(B, "b0")
    bench.wait("a0", "a1", "b0")
    bench.close()


def test_after_shutdown_nothing_is_taken() -> None:
    bench = Bench()
    bench.close()
    with pytest.raises(RuntimeError):
        bench.submit(A, "a0")
