"""FairOrder: what it keeps, and what it looks at."""

from dataclasses import replace

import pytest

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.scheduler.queue import WaitingQueue
from jaxinfer.engine.scheduler.share import RoundRobin, Share
from jaxinfer.engine.sequence import Status
from tests.engine.ledger import queue_entries
from tests.engine.small import RecordingRunner, ask, run, small_core, small_shapes
from tests.engine.stepping import step_deltas


@pytest.mark.parametrize("mode", ["key", "user"])
def test_requests_that_were_aborted_while_they_waited_are_let_go(mode: str) -> None:
    core = small_core(fair_share=mode, max_waiting=20_000)
    for i in range(100):
        for j in range(60):
            core.add_request(replace(ask(f"{i}.{j}", 3), tenant=(f"k{i % 7}", f"u{i}")))
    for i in range(100):
        for j in range(60):
            if j or i % 10:
                core.abort(f"{i}.{j}")
        assert queue_entries(core.scheduler.state.queue) <= 2 * core.num_waiting
    assert core.num_waiting == 10
    run(core)
    assert queue_entries(core.scheduler.state.queue) == 0


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Shares and priorities whose places were asked for."""
    asked: list[object] = []
    for kind in (Share, RoundRobin):
        place = kind.place

        def noted(self, *, deferred, place=place):
            asked.append(self)
            return place(self, deferred=deferred)

        monkeypatch.setattr(kind, "place", noted)
    return asked


def crowded(count: int, *, levels: int = 1) -> EngineCore:
    core = small_core(fair_share="user", scheduling_policy="priority", max_waiting=10_000)
    for i in range(count):
        core.add_request(replace(ask(f"r{i}", 3), tenant=(f"k{i % 9}", f"u{i}"), priority=i % levels))
    return core


@pytest.mark.parametrize("levels", [1, 500])
@pytest.mark.parametrize("deferred", [True, False])
def test_who_is_next_is_found_without_a_look_at_everybody(levels: int, deferred: bool, looked_at: list[object]) -> None:
    waiting = crowded(500, levels=levels).scheduler.state.queue
    first = waiting.peek(deferred=deferred)
    looked_at.clear()
    for _ in range(10):
        assert first is not None
        waiting.defer(first)
        waiting.take(first)
        first = waiting.peek(deferred=deferred)
    # Its user, its key and its priority, for each change.
    assert len(looked_at) <= 10 * 3


def everyone(waiting: WaitingQueue, *, deferred: bool) -> list[str]:
    names = []
    while (sequence := waiting.peek(deferred=deferred)) is not None:
        names.append(sequence.request_id)
        waiting.take(sequence)
    return names


def test_deferred_requests_are_passed_and_keep_their_places() -> None:
    waiting = crowded(40, levels=4).scheduler.state.queue
    order = everyone(crowded(40, levels=4).scheduler.state.queue, deferred=True)
    later = []
    for _ in range(7):
        sequence = waiting.peek(deferred=False)
        assert sequence is not None
        waiting.defer(sequence)
        later.append(sequence)
    assert waiting.num_deferred == 7
    again = waiting.peek()
    assert again is not None
    assert again.request_id == order[0]
    later[3].status = Status.FINISHED
    waiting.remove(later[3])
    assert waiting.num_deferred == 6
    gone = {sequence.request_id for sequence in later}
    assert everyone(waiting, deferred=False) == [name for name in order if name not in gone]
    left = everyone(waiting, deferred=True)
    assert sorted(left) == sorted(gone - {later[3].request_id})
    assert waiting.num_deferred == 0


def test_deferred_requests_are_counted_in_the_statistics() -> None:
    core = small_core(RecordingRunner(small_shapes(200)), max_num_partial_prefills=1)
    for i in range(5):
        core.add_request(replace(ask(f"long{i}", 40, 2), tenant=(f"k{i}",)))
    seen = set()
    while core.has_work():
        step_deltas(core)
        stats = core.stats()
        assert stats.scheduler.waiting_for_prefills <= stats.scheduler.waiting
        seen.add(stats.scheduler.waiting_for_prefills)
    assert max(seen) >= 3
    assert core.stats().scheduler.waiting_for_prefills == 0
