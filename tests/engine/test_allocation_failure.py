"""A request that waits for blocks costs the steps of those that run next to nothing."""

from jaxinfer.engine.scheduler.state import SchedulerState
from jaxinfer.engine.sequence import Sequence
from tests.engine.small import RecordingRunner, ask, right, run, small_core, small_shapes, step, tokens_of


def test_a_blocked_head_is_matched_again_only_when_blocks_were_freed(monkeypatch) -> None:
    matched: list[str] = []
    match = SchedulerState.match

    def counting(self: SchedulerState, sequence: Sequence) -> int:
        matched.append(sequence.request_id)
        return match(self, sequence)

    monkeypatch.setattr(SchedulerState, "match", counting)
    core = small_core(RecordingRunner(small_shapes(blocks=7)), watermark=0.0)
    runs, waits, got = ask("runs", 12, 8), ask("waits", 16, 4), {}
    core.add_request(runs)
    step(core, got)
    core.add_request(waits)
    for _ in range(5):
        step(core, got)
    assert core.num_waiting == 1, "the pool is meant to be too small for both"
    assert matched == ["runs", "waits"]
    run(core, got)
    for request in (runs, waits):
        assert tokens_of(got[request.request_id, 0]) == right(core, request)
