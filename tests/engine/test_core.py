"""EngineCore: steps ahead, ids, ends of every kind."""

from dataclasses import replace

import pytest

from jaxinfer.engine.types import FinishReason
from jaxinfer.errors import ParameterError, QueueFullError
from tests.engine.faulty import faulty_core
from tests.engine.ledger import live_sequences
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


@pytest.mark.smoke
@pytest.mark.parametrize("ahead", [0, 1, 2, 3])
def test_so_many_steps_are_in_flight(ahead) -> None:
    core = small_core(ahead=ahead)
    request = ask("r", 5, 12)
    core.add_request(request)
    got: Got = {}
    flying = []
    while core.has_work():
        step(core, got)
        flying.append(core.scheduler.state.in_flight)
    assert max(flying) == ahead
    assert flying[ahead : 12 - 1] == [ahead] * (12 - 1 - ahead)
    assert tokens_of(got["r", 0]) == right(core, request)
    assert core.stats().core.steps == 12


@pytest.mark.parametrize("ahead", [1, 3])
def test_an_id_is_taken_until_its_last_result_was_collected(ahead) -> None:
    core = small_core(ahead=ahead)
    core.add_request(ask("r", 3, 20))
    core.add_request(ask("other", 3, 20))
    for _ in range(4):
        step_deltas(core)
    with pytest.raises(ParameterError, match="in use"):
        core.add_request(ask("r", 3))
    core.abort("r")
    ended = [delta for delta in step_deltas(core) if delta.request_id == "r"]
    assert [delta.finish_reason for delta in ended] == [FinishReason.ABORT]
    for _ in range(ahead - 1):
        with pytest.raises(ParameterError, match="in use"):
            core.add_request(ask("r", 4))
        step_deltas(core)
    second = ask("r", 4, 5, seed=99)
    core.add_request(second)
    got = run(core)
    assert tokens_of(got["r", 0]) == right(core, second)


def test_an_id_is_free_at_once_where_nothing_is_in_flight() -> None:
    core = small_core()
    core.add_request(ask("r", 3))
    core.abort("r")
    core.add_request(ask("r", 3))
    run(core)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_late_results_of_ended_and_preempted_requests_are_dropped(ahead) -> None:
    core = small_core(ahead=ahead)
    kept, preempted, gone = ask("kept", 5, 15), ask("preempted", 6, 15), ask("gone", 7, 15)
    for request in (kept, preempted, gone):
        core.add_request(request)
    got: Got = {}
    for number in range(5):
        step(core, got)
        if number == 2:
            core.scheduler.state.preempt(sequence_of(core, "preempted"))
            core.abort("gone")
    run(core, got)
    assert tokens_of(got["kept", 0]) == right(core, kept)
    assert tokens_of(got["preempted", 0]) == right(core, preempted)
    assert tokens_of(got["gone", 0]) == right(core, gone)[: len(tokens_of(got["gone", 0]))]
    assert got["gone", 0][-1].finish_reason is FinishReason.ABORT


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_stop_ids_end_a_sequence_and_what_overran_is_dropped(ahead) -> None:
    free = ask("r", 5, 12)
    tokens = right(small_core(), free)
    end = next(token for i, token in enumerate(tokens) if i > 3 and token not in tokens[:i])
    core = small_core(ahead=ahead, eos=(end,))
    core.add_request(free)
    core.add_request(ask("ignores", free.prompt_token_ids, 12, ignore_eos=True))
    core.add_request(ask("own", free.prompt_token_ids, 12, ignore_eos=True, stop_token_ids=[end]))
    got = run(core)
    for name in ("r", "own"):
        assert tokens_of(got[name, 0]) == tokens[: tokens.index(end) + 1]
        assert got[name, 0][-1].finish_reason is FinishReason.STOP
        assert got[name, 0][-1].stop_token_id == end
    assert tokens_of(got["ignores", 0]) == tokens
    assert got["ignores", 0][-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_stop_ends_one_sequence_and_abort_all_of_them(ahead) -> None:
    core = small_core(ahead=ahead)
    forked = ask("r", 6, 20, n=3)
    core.add_request(forked)
    got: Got = {}
    for _ in range(8):
        step(core, got)
    core.stop("r", 1)
    core.stop("r", 7)
    core.stop("nobody", 0)
    step(core, got)
    assert got["r", 1][-1].finish_reason is FinishReason.STOP
    assert got["r", 1][-1].token_ids == []
    assert ("r", 0) in got
    core.stop("r", 1)  # again
    core.abort("r")
    core.abort("r")
    core.abort("nobody")
    run(core, got)
    for index, reason in ((0, FinishReason.ABORT), (1, FinishReason.STOP), (2, FinishReason.ABORT)):
        assert [delta.finish_reason for delta in got["r", index] if delta.finish_reason] == [reason]
        found = tokens_of(got["r", index])
        assert found == right(core, forked, index)[: len(found)]


def test_an_abort_before_the_fork_ends_every_sequence() -> None:
    core = small_core()
    core.add_request(ask("waiting", 6, n=3))
    core.abort("waiting")
    core.add_request(ask("parent", 40, n=4))
    got: Got = {}
    step(core, got)
    core.abort("parent")
    run(core, got)
    assert set(got) == {("waiting", i) for i in range(3)} | {("parent", i) for i in range(4)}
    assert {deltas[-1].finish_reason for deltas in got.values()} == {FinishReason.ABORT}


def test_abort_all() -> None:
    core = small_core(ahead=1)
    for i in range(9):
        core.add_request(ask(f"r{i}", 4 + i, n=1 + i % 3))
    for _ in range(4):
        step_deltas(core)
    core.abort_all()
    run(core)
    assert core.stats().scheduler.running == core.stats().scheduler.waiting == core.stats().kv.blocks_used == 0


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_no_token_ends_a_request_with_an_error_and_the_others_go_on(ahead) -> None:
    core, runner = faulty_core(ahead)
    requests = [ask(name, 6, 12) for name in "abc"]
    for request in requests:
        core.add_request(request)
    got: Got = {}
    for _ in range(5):
        step(core, got)
    runner.finite_tokens = {sequence_of(core, "b").slot: 0}
    for _ in range(5):
        step(core, got)
    runner.finite_tokens = {}
    core.add_request(ask("d", 6, 12))  # takes the slot
    run(core, got)
    assert got["b", 0][-1].finish_reason is FinishReason.ERROR
    assert "finite" in (got["b", 0][-1].error or "")
    for request in (requests[0], requests[2], ask("d", 6, 12)):
        assert tokens_of(got[request.request_id, 0]) == right(core, request)
    assert core.stats().core.generation_tokens == sum(len(tokens_of(deltas)) for deltas in got.values())


def test_a_full_queue_refuses() -> None:
    core = small_core(max_waiting=2)
    for name in "ab":
        core.add_request(ask(name, 3))
    with pytest.raises(QueueFullError):
        core.add_request(ask("c", 3))
    step_deltas(core)
    core.add_request(ask("c", 3))
    run(core)


def test_the_queue_limit_counts_requests_and_not_their_sequences() -> None:
    core = small_core(max_waiting=2)
    core.add_request(ask("busy", 3, 30, n=2))
    core.add_request(ask("forked", 3, 30, n=4))
    got: Got = {}
    while len(live_sequences(core, "forked")) < 4:
        step(core, got)
    assert len(core.scheduler.state.queue) == 2
    assert core.num_waiting == core.stats().scheduler.waiting == 1
    core.add_request(ask("other", 3, n=4))
    with pytest.raises(QueueFullError):
        core.add_request(ask("third", 3))
    run(core, got)
    assert core.num_waiting == 0


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_the_first_delta_tells_what_it_waited_for(ahead, logprobs) -> None:
    """Time moves a second a step: the queue, then the prompt's chunks, then the result's way back."""
    now = 0
    core = small_core(RecordingRunner(small_shapes(max_num_seqs=2)), ahead=ahead, clock=lambda: now)
    for name, prompt, n in (("a", 3, 1), ("b", 20, 2), ("c", 3, 1)):
        core.add_request(ask(name, prompt, 4, n=n, logprobs=logprobs))
    came: dict[str, int] = {}
    entered: dict[str, int] = {}
    got: Got = {}
    while core.has_work():
        now += 10**9
        for sequence in live_sequences(core):
            if sequence.index == 0 and sequence.slot >= 0:
                entered.setdefault(sequence.request_id, now // 10**9 - 1)
        if now == 3 * 10**9:
            core.scheduler.state.preempt(sequence_of(core, "b"))
        before = {key: len(deltas) for key, deltas in got.items()}
        step(core, got)
        for name, index in got:
            if index == 0 and (name, index) not in before:
                came[name] = now // 10**9
    for (name, index), deltas in got.items():
        times = deltas[0].times
        assert all(delta.times is None for delta in deltas[1:])
        if index:
            assert times is None
        else:
            assert times is not None
            assert times.queue == pytest.approx(entered[name])
            assert times.queue + times.prefill == pytest.approx(came[name])
    assert entered["c"] > entered["a"] == entered["b"] == 1


def test_stats_count_what_happened() -> None:
    core = small_core()
    core.add_request(ask("a", [*range(1, 13)], 4))
    run(core)
    core.add_request(ask("b", [*range(1, 13)], 4))
    core.add_request(ask("c", [*range(1, 13)], 4))
    stats = core.stats()
    assert (stats.scheduler.running, stats.scheduler.waiting) == (0, 2)
    got: Got = {}
    step(core, got)
    assert core.stats().scheduler.running == 2
    run(core, got)
    stats = core.stats()
    assert stats.admission.prefix_queries == 36
    assert stats.admission.prefix_hits == 16  # two of three blocks each: the last token is computed
    assert got["b", 0][0].cached_tokens == 8
    assert (stats.core.prompt_tokens, stats.core.generation_tokens) == (36, 12)
    assert stats.kv.blocks_total == 39


def test_salts_part_the_cache() -> None:
    core = small_core()
    prompt = [*range(1, 13)]
    for name, salt in (("a", "x"), ("b", "y"), ("c", "x"), ("d", "")):
        core.add_request(replace(ask(name, prompt, 2), cache_salt=salt))
        assert run(core)[name, 0][-1].cached_tokens == (8 if name == "c" else 0)
