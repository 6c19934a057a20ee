"""The scheduler's rules (jaxinfer/design/scheduling.md, steps.md), one at a time."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.scheduler.policy import FirstComeFirstServed
from jaxinfer.engine.sequence import Sequence, Status
from jaxinfer.engine.step.plan import StepPlan
from jaxinfer.engine.types import FinishReason
from jaxinfer.errors import ParameterError
from tests.engine.ledger import live_sequences, queue_entries
from tests.engine.small import (
    Got,
    RecordingRunner,
    ask,
    right,
    run,
    sequence_of,
    small_core,
    small_shapes,
    step,
    tokens_of,
)
from tests.engine.stepping import step_deltas


class LastComeFirstServed(FirstComeFirstServed):
    """Whoever comes later is served before, and preempted after."""

    def rank(self, sequence: Sequence) -> tuple[int, ...]:
        return (-sequence.arrival, sequence.index)


def plans_of(core: EngineCore) -> list[StepPlan]:
    assert isinstance(core.runner, RecordingRunner)
    return core.runner.plans


def rows_of(plan: StepPlan) -> dict[int, tuple[int, int, int]]:
    """slot -> (first position, tokens, scored)."""
    rows = zip(plan.slots, plan.starts, plan.counts, plan.scored, strict=True)
    return {int(slot): (int(start), int(count), int(scored)) for slot, start, count, scored in rows}


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_no_plan_exceeds_a_budget(ahead) -> None:
    core = small_core(ahead=ahead)
    requests = [ask(f"r{i}", 3 + 5 * i, prompt_logprobs=1 if i % 3 == 0 else None) for i in range(8)]
    for request in requests:
        core.add_request(request)
    got = run(core)
    plans = plans_of(core)
    assert max(plan.num_tokens for plan in plans) == 16
    assert max(plan.num_scored for plan in plans) == 4
    assert all(len(set(plan.slots.tolist())) == plan.num_rows for plan in plans)
    for request in requests:
        assert tokens_of(got[request.request_id, 0]) == right(core, request)


def test_a_prompt_fills_what_decoding_leaves_of_a_step() -> None:
    core = small_core()
    core.add_request(ask("first", 3, 20))
    step_deltas(core)
    core.add_request(ask("long", 40))
    step_deltas(core)
    assert plans_of(core)[-1].num_decode == 1
    assert rows_of(plans_of(core)[-1])[sequence_of(core, "long").slot] == (0, 15, 0)
    step_deltas(core)
    step_deltas(core)
    assert rows_of(plans_of(core)[-1])[sequence_of(core, "long").slot] == (30, 10, 1)
    run(core)


def test_running_requests_come_before_waiting_ones() -> None:
    core = small_core()
    core.add_request(ask("a", 20))
    core.add_request(ask("b", 20))
    step_deltas(core)
    assert list(rows_of(plans_of(core)[-1])) == [sequence_of(core, "a").slot]
    step_deltas(core)
    assert rows_of(plans_of(core)[-1]) == {
        sequence_of(core, "a").slot: (16, 4, 1),
        sequence_of(core, "b").slot: (0, 12, 0),
    }
    run(core)


def test_a_long_prompt_is_computed_by_chunks_of_the_threshold() -> None:
    core = small_core(long_prefill_token_threshold=5)
    core.add_request(ask("a", 12))
    core.add_request(ask("b", 12))
    run(core)
    first = [plan.counts.tolist() for plan in plans_of(core)[:3]]
    assert first == [[5, 5], [5, 5], [2, 2]]


def test_without_chunks_a_prompt_is_computed_whole_or_not_at_all() -> None:
    core = small_core(enable_chunked_prefill=False)
    requests = [ask(name, 12) for name in "abc"]
    for request in requests:
        core.add_request(request)
    got = run(core)
    for plan in plans_of(core):
        assert set(plan.counts.tolist()) <= {1, 12}
        assert plan.counts.tolist().count(12) <= 1
    assert all(tokens_of(got[request.request_id, 0]) == right(core, request) for request in requests)


def test_a_prompt_that_is_scored_leaves_a_position_for_every_other_row() -> None:
    plain, scored = ask("plain", 10), ask("scored", 20, prompt_logprobs=0)
    core = small_core(policy=LastComeFirstServed(), long_prefill_token_threshold=4)
    core.add_request(plain)
    step_deltas(core)
    core.add_request(scored)
    got: Got = {}
    while core.scheduler.state.running[0].request_id != "scored":
        step(core, got)
    slot = sequence_of(core, "plain").slot
    step(core, got)
    assert rows_of(plans_of(core)[-1]) == {sequence_of(core, "scored").slot: (4, 3, 3), slot: (8, 2, 1)}
    got = run(core, got)
    assert tokens_of(got["plain", 0]) == right(core, plain)
    assert tokens_of(got["scored", 0]) == right(core, scored)


def starving(ahead: int, **options: Any) -> EngineCore:
    """Blocks for two of three requests."""
    return small_core(RecordingRunner(small_shapes(blocks=12)), ahead=ahead, caching=False, watermark=0.0, **options)


@pytest.mark.parametrize("policy", [FirstComeFirstServed(), LastComeFirstServed()])
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_the_victim_is_the_last_in_rank_once_all_was_collected(ahead, policy, monkeypatch) -> None:
    core = starving(ahead, policy=policy)
    scheduler = core.scheduler
    preempt, victims = scheduler.state.preempt, []

    def checked(sequence: Sequence) -> None:
        assert scheduler.state.in_flight == 0
        assert sequence is max(scheduler.state.running, key=policy.rank)
        assert sequence.status is Status.RUNNING
        victims.append((sequence, len(plans_of(core))))
        preempt(sequence)

    monkeypatch.setattr(scheduler.state, "preempt", checked)
    requests = [ask(f"r{i}", 8, 20) for i in range(3)]
    for request in requests:
        core.add_request(request)
    got = run(core)
    assert victims
    for _, at in victims:
        if at < len(plans_of(core)):
            # A victim is not resumed, nor anyone else admitted, by the plan that preempted it.
            assert plans_of(core)[at].admissions == ()
    for request in requests:
        assert tokens_of(got[request.request_id, 0]) == right(core, request)


def test_who_asks_may_be_the_victim() -> None:
    core = starving(0)
    core.add_request(ask("a", 17, 20))
    core.add_request(ask("b", 15, 20))
    while core.stats().scheduler.preemptions == 0:
        step_deltas(core)
    assert sequence_of(core, "b").slot == -1
    assert sequence_of(core, "b").kv.blocks == [[]]
    assert sequence_of(core, "a").slot >= 0
    run(core)


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_draining_request_has_no_row_keeps_its_blocks_and_is_no_victim(ahead) -> None:
    core = small_core(ahead=ahead)
    core.add_request(ask("a", 6, 1))
    step_deltas(core)
    sequence = sequence_of(core, "a")
    assert sequence.status is Status.DRAINING
    assert sequence not in core.scheduler.state.running
    assert len(sequence.kv.blocks[0]) == 2
    assert core.scheduler.schedule() is None
    assert core.has_work()
    assert tokens_of(step_deltas(core)) == right(core, ask("a", 6, 1))  # an empty plan still collects
    assert not core.has_work()
    assert sequence.status is Status.FINISHED


def test_the_watermark_keeps_blocks_for_those_that_run() -> None:
    core = small_core(RecordingRunner(small_shapes(blocks=13)), watermark=0.5, caching=False)
    core.add_request(ask("a", 16, 4))
    step_deltas(core)  # 4 of 12 blocks are used, 6 must stay free
    core.add_request(ask("b", 12, 4))
    step_deltas(core)
    assert sequence_of(core, "b").slot == -1
    run(core)
    alone = small_core(RecordingRunner(small_shapes(blocks=13)), watermark=0.99, caching=False)
    alone.add_request(ask("a", 16, 4))  # with nobody running there is nobody to keep blocks for
    run(alone)


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (ask("r", []), "prompt"),
        (ask("r", 48), "prompt"),
        (ask("r", [1, 61]), "prompt"),
        (ask("r", [1, -1]), "prompt"),
        (ask("r", 40, 8), "max_tokens"),
        (ask("r", 4, stop_token_ids=[61]), "stop_token_ids"),
        (ask("r", 4, logit_bias={61: 1.0}), "logit_bias"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_can_never_be_served_is_refused_at_the_door(request_, param) -> None:
    core = small_core(RecordingRunner(small_shapes(blocks=11)))
    with pytest.raises(ParameterError) as error:
        core.add_request(request_)
    assert error.value.param == param
    assert not core.has_work()
    core.add_request(ask("r", 4))  # its name was not taken
    run(core)


def test_a_request_that_just_fits_is_served() -> None:
    core = small_core(RecordingRunner(small_shapes(blocks=12)))
    request = ask("r", 40, 5)  # 44 positions are computed: all 11 blocks
    core.add_request(request)
    assert tokens_of(run(core)["r", 0]) == right(core, request)
    context = small_core()
    request = ask("context", 40, 100)
    context.add_request(request)
    assert len(tokens_of(run(context)["context", 0])) == 8


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("caching", [True, False])
def test_sequences_wait_for_slots_with_their_parents_blocks(ahead, caching) -> None:
    core = small_core(ahead=ahead, caching=caching)
    busy = [ask(f"busy{i}", 3, 10) for i in range(2)]
    forked = ask("forked", 10, 6, n=4)
    for request in (*busy, forked):
        core.add_request(request)
    got: Got = {}
    while len(live_sequences(core, "forked")) < 4:
        step(core, got)
    waiting = [sequence for sequence in live_sequences(core, "forked") if sequence.is_waiting_fork]
    assert len(waiting) >= 2
    full = sequence_of(core, "forked").kv.blocks[0][:2]
    assert all(sequence.kv.blocks[0][:2] == full for sequence in waiting)
    run(core, got)
    # The prompt was computed once but for its last token: 9 tokens, and one a sequence.
    prompt_tokens = [int(plan.counts[plan.slots == a.slot].sum()) for plan in plans_of(core) for a in plan.admissions]
    assert sum(prompt_tokens) <= 2 * 3 + 9 + 4
    for index in range(4):
        assert tokens_of(got["forked", index]) == right(core, forked, index)


def test_a_full_last_block_is_shared_and_not_copied() -> None:
    core = small_core()
    core.add_request(ask("whole", 9, 3, n=3))
    run(core)
    assert not sum(len(plan.copies[0]) for plan in plans_of(core))
    core.add_request(ask("part", 10, 3, n=3))
    run(core)
    assert sum(len(plan.copies[0]) for plan in plans_of(core)) == 2


def test_priority_is_refused_by_this_policy() -> None:
    with pytest.raises(ParameterError, match="priority"):
        small_core().add_request(replace(ask("r", 3), priority=1))


@pytest.mark.long
def test_removing_many_waiting_requests_costs_no_search() -> None:
    """Ranks are computed once a request, and the heap shrinks with what was taken out of it."""
    ranked = []

    class Counting(FirstComeFirstServed):
        def rank(self, sequence: Sequence) -> tuple[int, ...]:
            ranked.append(1)
            return super().rank(sequence)

    core = small_core(policy=Counting(), max_waiting=200_000)
    count = 100_000  # about three seconds
    for i in range(count):
        core.add_request(ask(str(i), [1, 2], 1))
    for i in range(1, count):
        core.abort(str(i))
        if i % 9973 == 0:
            assert queue_entries(core.scheduler.state.queue) <= 2 * core.num_waiting + 64
    assert core.num_waiting == 1
    assert len(ranked) == count
    got = run(core)
    assert [deltas[-1].finish_reason for key, deltas in got.items() if key[0] != "0"] == [FinishReason.ABORT] * (
        count - 1
    )
    assert len(tokens_of(got["0", 0])) == 1


def test_windowed_blocks_are_freed_behind_the_window() -> None:
    core = small_core(RecordingRunner(small_shapes(blocks=12, window=6)), caching=False)
    request = ask("r", 12, 30)
    core.add_request(request)
    held = []
    while core.has_work():
        step_deltas(core)
        held.append(core.scheduler.state.kv.blocks_in_use)
    assert max(held[3:]) <= 3  # 6 tokens and the next one touch three blocks of 4 at most
    assert np.concatenate([plan.block_updates[0][:, 1] for plan in plans_of(core)]).max() == 10
