"""A watchdog counts the time in which its watcher ran, and no other."""

import pytest

from jaxinfer.engine.watchdog import Watchdog

pytestmark = pytest.mark.smoke


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def asked_until_it_expires(watchdog: Watchdog, clock: Clock, step: float) -> float:
    """Seconds until it expires where it is asked every `step` seconds."""
    start = clock.now
    while not watchdog.expired():
        clock.now += step
        assert clock.now - start < 1000
    return clock.now - start


def test_it_expires_after_its_seconds_of_silence(clock: Clock) -> None:
    watchdog = Watchdog(6.0, clock=clock)
    assert asked_until_it_expires(watchdog, clock, watchdog.interval) == pytest.approx(6.0, abs=0.6)


def test_who_shows_itself_does_not_expire(clock: Clock) -> None:
    watchdog = Watchdog(6.0, clock=clock)
    for _ in range(100):
        for _ in range(11):
            clock.now += 0.5
            assert not watchdog.expired()
        watchdog.feed()
    assert asked_until_it_expires(watchdog, clock, 0.5) == pytest.approx(6.0, abs=0.6)


def test_a_watcher_that_slept_blames_nobody(clock: Clock) -> None:
    watchdog = Watchdog(6.0, clock=clock)
    clock.now += 3 * 3600.0
    assert not watchdog.expired()
    clock.now += 0.5
    watchdog.feed()
    clock.now += 3 * 3600.0
    assert not watchdog.expired()


def test_a_watcher_that_is_always_late_needs_longer(clock: Clock) -> None:
    watchdog = Watchdog(6.0, clock=clock)
    assert asked_until_it_expires(watchdog, clock, 10 * watchdog.interval) == pytest.approx(30.0, abs=6)
