"""A step that fails: its requests are tried again, nothing is told twice or lost, and the engine goes on."""

import itertools
import logging
import random
from collections.abc import Callable

import pytest

from jaxinfer.config import SchedulerConfig
from jaxinfer.engine.step.plan import StepPlan
from jaxinfer.engine.types import FinishReason
from jaxinfer.errors import ParameterError
from tests.engine.faulty import (
    FAULTS,
    FaultAt,
    FaultyRunner,
    StepBroke,
    check_empty,
    check_right,
    faulty_core,
    mixed,
    run_checked,
)
from tests.engine.ledger import live_sequences
from tests.engine.small import Got, ask, right, run, sequence_of, small_core, small_shapes, step, tokens_of


def now_and_then(seed: int, share: float) -> Callable[[FaultAt, StepPlan], bool]:
    draw = random.Random(seed)
    return lambda at, plan: draw.random() < share


@pytest.mark.smoke
@pytest.mark.few(2)
@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("at", FAULTS)
def test_a_fault_at_any_step_changes_no_stream(at, ahead) -> None:
    """Once for every step of the workload: over a hundred faults in all."""
    faults, number = 0, 0
    while faults == number:
        core, runner = faulty_core(ahead, small_shapes(blocks=24, window=11))
        runner.fail_once(at, after=number)
        number += 1
        requests = mixed()
        for request in requests:
            core.add_request(request)
        check_right(core, run_checked(core), requests)
        assert core.stats().core.step_faults == runner.resets
        faults += core.stats().core.step_faults
    assert faults > 25


@pytest.mark.few(1)
@pytest.mark.parametrize("step_seconds", [None, 0.0002], ids=["at_collect", "in_a_thread"])
@pytest.mark.parametrize("policy", ["fcfs", "priority", "sjf"])
def test_many_faults_change_no_stream(policy, step_seconds) -> None:
    """With a device thread the results of void steps are on their way when the next ones are dispatched."""
    faults = 0
    for seed in range(6):
        runner = FaultyRunner(small_shapes(blocks=24), step_seconds=step_seconds)
        core = small_core(runner, ahead=seed % 4, scheduling_policy=policy, max_step_retries=1000)
        runner.fails = now_and_then(seed, 0.06)
        requests = mixed(10)
        for request in requests:
            core.add_request(request)
        check_right(core, run_checked(core), requests)
        assert core.num_waiting == 0
        faults += core.stats().core.step_faults
        runner.close()
    assert faults > 25


def test_what_was_read_before_the_fault_is_told() -> None:
    core, runner = faulty_core(ahead=3)
    request = ask("r", 5, 4)
    core.add_request(request)
    got: Got = {}
    for _ in range(4):
        step(core, got)
    assert len(tokens_of(got["r", 0])) == 1
    # Everything is planned: the next call reads the three steps that are left, of which the second fails.
    last = runner.plans[-2].index
    runner.fails = lambda at, plan: at == "collect" and plan.index == last
    step(core, got)
    assert tokens_of(got["r", 0]) == right(core, request)[:2]
    assert core.stats().core.step_faults == 1
    runner.fail_never()
    check_right(core, run_checked(core, got), [request])


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("at", FAULTS)
def test_when_every_step_fails_all_requests_end_and_the_next_is_served(at, ahead) -> None:
    """A parent with a prompt of one token has no row: its admission alone fails."""
    core, runner = faulty_core(ahead)
    runner.fails = lambda now, plan: now == at
    requests = [ask("one", 1, 5, n=3), *mixed()]
    for request in requests:
        core.add_request(request)
    got = run_checked(core)
    assert core.stats().core.step_faults <= 3 * len(requests)
    for request in requests:
        for index in range(request.sampling.n):
            (delta,) = got[request.request_id, index]
            assert delta.finish_reason is FinishReason.ERROR
            assert delta.error == "computing the next token failed with StepBroke (tries: 3)"
    runner.fail_never()
    after = ask("one", 9, 5, n=2)
    core.add_request(after)
    check_right(core, run_checked(core), [after])


@pytest.mark.parametrize("retries", [0, 1, 4])
def test_a_request_is_tried_as_often_as_it_is_told(retries) -> None:
    core, runner = faulty_core(max_step_retries=retries)
    runner.fails = lambda at, plan: at == "collect"
    core.add_request(ask("r", 5))
    ((delta,),) = run_checked(core).values()
    assert core.stats().core.step_faults == retries + 1
    assert delta.error is not None
    assert f"(tries: {retries + 1})" in delta.error


def test_retries_are_at_least_none() -> None:
    with pytest.raises(ParameterError, match="max_step_retries"):
        SchedulerConfig(max_step_retries=-1)


def test_tries_are_counted_anew_once_a_request_comes_further() -> None:
    """Many faults and a token between any three of them end nobody; three without one do."""
    core, runner = faulty_core(ahead=0)
    request = ask("r", 5, 11)  # that one step computes whole again
    core.add_request(request)
    runner.fails = lambda at, plan: at == "collect" and plan.index % 3 != 0
    check_right(core, run_checked(core), [request])
    assert core.stats().core.step_faults > 15
    runner.fails = lambda at, plan: at == "collect" and plan.starts[0] + plan.counts[0] >= 9
    core.add_request(ask("again", 5, 20))
    got = run_checked(core)
    assert tokens_of(got["again", 0]) == right(core, ask("again", 5, 20))[:4]
    assert got["again", 0][-1].finish_reason is FinishReason.ERROR


def test_those_outside_void_steps_lose_no_try() -> None:
    """Requests that wait, and sequences that wait with their parent's blocks."""
    core, runner = faulty_core(ahead=0, max_step_retries=0)
    requests = {request.request_id: request for request in (ask("a", 5, 9, n=3), ask("b", 6, 9, n=3), ask("c", 7, 9))}
    got: Got = {}
    for name in "ab":
        core.add_request(requests[name])
    while not any(sequence.is_waiting_fork for sequence in live_sequences(core)) or core.scheduler.state.table.num_free:
        step(core, got)
    core.add_request(requests["c"])
    running = {(sequence.request_id, sequence.index) for sequence in core.scheduler.state.running}
    runner.fail_once("collect")
    step(core, got)
    check_empty(core)
    run_checked(core, got)
    assert {key for key, deltas in got.items() if deltas[-1].finish_reason is FinishReason.ERROR} == running
    rest = set(got) - running
    assert ("c", 0) in rest
    assert len(rest) == 3
    assert all(tokens_of(got[key]) == right(core, requests[key[0]], key[1]) for key in rest)


@pytest.mark.parametrize("at", FAULTS)
def test_log_probabilities_of_a_prompt_come_once_and_whole(at) -> None:
    core, runner = faulty_core(ahead=1)
    request = ask("r", 23, 6, prompt_logprobs=1, logprobs=2, n=2)
    core.add_request(request)
    got: Got = {}
    for _ in range(4):
        step(core, got)
    runner.fail_once(at)
    check_right(core, run_checked(core, got), [request])
    assert core.stats().core.step_faults == 1
    (reported,) = [d.prompt_logprobs for deltas in got.values() for d in deltas if d.prompt_logprobs is not None]
    assert [entry and entry.token_id for entry in reported] == [None, *request.prompt_token_ids[1:]]
    assert all(len(d.logprobs or []) == len(d.token_ids) for deltas in got.values() for d in deltas)


def test_the_prefix_cache_is_empty_after_a_fault_and_fills_again() -> None:
    core, runner = faulty_core()
    first, second, third = (ask(name, list(range(20)), 3) for name in ("a", "b", "c"))
    core.add_request(first)
    run(core)
    assert core.scheduler.state.kv.pools[0].num_evictable
    core.add_request(second)
    runner.fail_once("collected")
    got = run_checked(core)
    check_right(core, got, [second])
    core.add_request(third)
    got = run_checked(core)
    check_right(core, got, [third])
    assert got["c", 0][0].cached_tokens == 16


def test_an_id_is_free_after_a_fault() -> None:
    """No result of the aborted request will come any more."""
    core, runner = faulty_core(ahead=3)
    core.add_request(ask("r", 5))
    step(core, {})
    core.abort("r")
    core.add_request(ask("other", 5))
    runner.fail_once("dispatch")
    step(core, {})
    assert not core.is_retiring("r")
    for _ in range(2):  # and so it is after the next results
        core.add_request(ask("r", 6, 3))
        check_right(core, run_checked(core), [ask("r", 6, 3)])
        core.add_request(ask("r", 6, 30))
        step(core, {})
        core.abort("r")
        run(core)
        assert not core.is_retiring("r")


def test_an_end_that_was_not_told_yet_is_told_by_the_failing_step() -> None:
    core, runner = faulty_core(ahead=1)
    for name in ("gone", "stays"):
        core.add_request(ask(name, 5, 6))
    step(core, {})
    core.abort("gone")
    runner.fail_once("dispatch")
    got: Got = {}
    step(core, got)
    assert [delta.finish_reason for delta in got["gone", 0]] == [FinishReason.ABORT]
    check_right(core, run_checked(core, got), [ask("stays", 5, 6)])


def test_a_prompt_of_many_steps_enters_again() -> None:
    """No other is half computed now, whatever was before."""
    core, runner = faulty_core(ahead=0, max_num_partial_prefills=1)
    request = ask("r", 40, 3)
    core.add_request(request)
    step(core, {})
    runner.fail_once("collect")
    check_right(core, run_checked(core), [request])


def test_a_fault_is_logged_once_with_its_traceback(caplog) -> None:
    core, runner = faulty_core()
    runner.fail_once("collect")
    core.add_request(ask("r", 5))
    with caplog.at_level(logging.DEBUG):
        run_checked(core)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], StepBroke)


def test_what_is_no_step_fault_goes_up(monkeypatch) -> None:
    """An interrupt, a device that cannot be reset, and a defect of the engine's own."""
    core, runner = faulty_core(ahead=0)
    core.add_request(ask("r", 5))

    def interrupt(at: FaultAt, plan: StepPlan) -> bool:
        raise KeyboardInterrupt

    runner.fails = interrupt
    with pytest.raises(KeyboardInterrupt):
        core.step()
    gone = Gone(small_shapes())
    core = small_core(gone)
    core.add_request(ask("r", 5))
    gone.fail_once("dispatch")
    with pytest.raises(OSError, match="the device is gone"):
        core.step()
    core, runner = faulty_core(ahead=0)
    core.add_request(ask("r", 5))
    monkeypatch.setattr(core.scheduler, "schedule", _gone)
    with pytest.raises(OSError, match="the device is gone"):
        core.step()
    assert core.stats().core.step_faults == 0


class Gone(FaultyRunner):
    def reset(self) -> None:
        _gone()


def _gone() -> None:
    raise OSError("the device is gone")


def test_what_was_computed_of_a_prompt_counts_too() -> None:
    """It fails after 4, 12 and 36 of 40 tokens and ends well; the next fails after 36 twice, and that is all."""
    core, runner = faulty_core(ahead=0, max_step_retries=1, long_prefill_token_threshold=4)
    request = ask("r", 40, 3)
    core.add_request(request)
    runner.fails = lambda at, plan: at == "collect" and plan.index in (1, 1 + 4, 1 + 4 + 10)
    check_right(core, run_checked(core), [request])
    core.add_request(ask("again", 40, 3))
    runner.fails = lambda at, plan: at == "collect" and plan.starts[0] == 36
    assert run_checked(core)["again", 0][-1].finish_reason is FinishReason.ERROR
    assert core.stats().core.step_faults == 3 + 2


def test_coming_as_far_as_before_is_no_progress() -> None:
    """It fails at its first token and at its fifth by turns."""
    core, runner = faulty_core(ahead=0, long_prefill_token_threshold=4)
    core.add_request(ask("r", 40, 3))
    places = itertools.cycle([4, 0])
    at_now = next(places)

    def fails(at: FaultAt, plan: StepPlan) -> bool:
        nonlocal at_now
        failed = at == "collect" and plan.starts[0] == at_now
        at_now = next(places) if failed else at_now
        return failed

    runner.fails = fails
    assert run_checked(core)["r", 0][-1].finish_reason is FinishReason.ERROR
    assert core.stats().core.step_faults == 3


def test_sequences_of_a_parent_that_failed_start_anew() -> None:
    core, runner = faulty_core(ahead=0)
    core.add_request(ask("r", 9, 6, n=2))
    for _ in range(2):
        runner.fail_once("collect")
        step(core, {})
    assert sequence_of(core, "r").failures == 2
    got: Got = {}
    while len(live_sequences(core, "r")) == 1:
        step(core, got)
    assert sequence_of(core, "r", 1).failures == 0
    check_right(core, run_checked(core, got), [ask("r", 9, 6, n=2)])
