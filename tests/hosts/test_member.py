"""A member is lost by time in which its watcher ran, and no other."""

from functools import partial

import pytest

from jaxinfer.engine.watchdog import Watchdog
from jaxinfer.hosts import member
from jaxinfer.hosts.member import Member
from jaxinfer.hosts.messages import Progress
from jaxinfer.hosts.timing import TIMING


class Clock:
    """Seconds; `run` lets a watcher look twice a second, `sleep` lets nobody run."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, watched: Member, seconds: float, num_calls: int = 0, *, heard: bool = False) -> str | None:
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            if heard:
                watched.hear()
            if (complaint := watched.complaint(num_calls)) is not None:
                return complaint
        return None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(member, "Watchdog", partial(Watchdog, clock=made))
    return made


@pytest.fixture
def watched(clock: Clock) -> Member:
    made = Member(3, "ipv4:10.0.0.3:70", TIMING)
    made.start_serving()
    return made


def test_silence_is_noticed_within_7_seconds(clock: Clock, watched: Member) -> None:
    assert clock.run(watched, 5.5) is None
    assert clock.run(watched, 1.0) == "host 3 was silent for 6 s"


def test_a_machine_that_slept_blames_nobody(clock: Clock, watched: Member) -> None:
    for _ in range(3):
        clock.sleep(3600)
        assert clock.run(watched, 1.0, num_calls=5) is None
        watched.hear()


def test_a_host_that_loads_may_be_silent_for_longer(clock: Clock) -> None:
    loading = Member(3, "", TIMING)
    assert clock.run(loading, 50) is None
    assert clock.run(loading, 11) == "host 3 was silent for 60 s"


def test_a_step_may_take_a_time(clock: Clock, watched: Member) -> None:
    assert clock.run(watched, 119, num_calls=1, heard=True) is None
    complaint = clock.run(watched, 2, num_calls=1, heard=True)
    assert complaint == "host 3 has made no progress for 120 s; it has performed 0 of 1 calls"


def test_progress_gives_more_time(clock: Clock, watched: Member) -> None:
    for applied in range(1, 4):
        assert clock.run(watched, 100, num_calls=9, heard=True) is None
        watched.report(Progress(applied, 0, None, True, False), lambda number: None)


def test_reports_without_progress_give_none(clock: Clock, watched: Member) -> None:
    """Also where it waits for a step, and has performed all calls."""
    for _ in range(2):
        watched.report(Progress(0, 0, None, True, False), lambda number: None)
        complaint = clock.run(watched, 61, heard=True)
    assert complaint == "host 3 has made no progress for 120 s; it has performed 0 of 0 calls"


@pytest.mark.parametrize(("busy", "compiling", "num_calls"), [(False, False, 0), (True, True, 1), (False, True, 1)])
def test_idleness_and_compiling_are_no_stall(
    clock: Clock, watched: Member, busy: bool, compiling: bool, num_calls: int
):
    watched.report(Progress(0, 0, None, busy, compiling), lambda number: None)
    assert clock.run(watched, 500, num_calls=num_calls, heard=True) is None


def test_without_a_limit_a_step_may_take_for_ever(clock: Clock) -> None:
    free = Member(3, "", TIMING._replace(step=0))
    free.start_serving()
    assert clock.run(free, 5000, num_calls=1, heard=True) is None
