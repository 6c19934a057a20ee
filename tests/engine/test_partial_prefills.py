"""Prompts that take several steps: how many at once, and what passes them."""

from dataclasses import replace

import numpy as np
import pytest

from jaxinfer.config import SchedulerConfig
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.step.plan import StepPlan
from jaxinfer.errors import ParameterError
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


def half_computed(core: EngineCore) -> list[str]:
    """Requests with more than one token to compute."""
    table = core.scheduler.state.table
    left = [(r, table.total[r.slot] - table.computed[r.slot]) for r in core.scheduler.state.running]
    return [request.request_id for request, count in left if count > 1]


def order_of(got: Got) -> list[str]:
    """Names by the step of their first token."""
    return list(dict.fromkeys(name for name, _ in got))


def last_plan(core: EngineCore) -> StepPlan:
    assert isinstance(core.runner, RecordingRunner)
    return core.runner.plans[-1]


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("policy", ["fcfs", "sjf"])
@pytest.mark.parametrize("limit", [1, 2, 3, None])
def test_at_most_so_many_prompts_are_half_computed(limit, policy, ahead) -> None:
    core = small_core(
        RecordingRunner(small_shapes(100, max_num_seqs=8, max_scored=8)),
        ahead=ahead,
        scheduling_policy=policy,
        max_num_partial_prefills=limit,
        long_prefill_token_threshold=3,
    )
    requests = [ask(f"r{i}", 10 + 3 * (i % 5), 4, n=1 + i % 2) for i in range(12)]
    for request in requests:
        core.add_request(request)
    got: Got = {}
    most = 0
    while core.has_work():
        step(core, got)
        most = max(most, len(half_computed(core)))
    assert most == (limit or 6)  # a step's 16 tokens are five chunks of three and one of one token
    for request in requests:
        for index in range(request.sampling.n):
            assert tokens_of(got[request.request_id, index]) == right(core, request, index)


@pytest.mark.parametrize(("limit", "order"), [(None, ["long", "short"]), (1, ["short", "long"])])
def test_a_long_prompt_leaves_a_short_one_its_share(limit, order) -> None:
    core, got = small_core(max_num_partial_prefills=limit), {}
    core.add_request(ask("long", 40, 2))
    step(core, got)
    core.add_request(ask("short", 6, 2))
    run(core, got)
    assert order_of(got) == order


def test_alone_a_long_prompt_gets_all_of_a_step() -> None:
    core = small_core(max_num_partial_prefills=2)
    core.add_request(ask("long", 40, 2))
    for _ in range(2):
        step_deltas(core)
        assert last_plan(core).counts.tolist() == [16]
    run(core)


def test_those_that_share_a_step_share_it_equally_and_what_one_leaves_goes_on() -> None:
    core = small_core(max_num_partial_prefills=2)
    core.add_request(ask("a", 40, 2))
    step_deltas(core)
    core.add_request(ask("b", 30, 2))
    step_deltas(core)  # a 8, b 8
    assert last_plan(core).counts.tolist() == [8, 8]
    core.add_request(ask("c", 40, 2))
    step_deltas(core)  # a third is left for c, which no step finishes: it is deferred, and its share is lost once
    assert last_plan(core).counts.tolist() == [6, 5]
    step_deltas(core)
    assert last_plan(core).counts.tolist() == [8, 8]
    run(core)


def test_long_prompts_are_deferred_in_order_and_short_ones_pass() -> None:
    core, got = small_core(RecordingRunner(small_shapes(100)), max_num_partial_prefills=1), {}
    names = ["long1", "long2", "short1", "long3", "short2"]
    requests = [ask(name, 40 if name.startswith("long") else 3, 2) for name in names]
    for request in requests:
        core.add_request(request)
    for _ in range(100):
        if not core.has_work():
            break
        step(core, got)
        assert len(half_computed(core)) <= 1
    assert order_of(got) == ["short1", "short2", "long1", "long2", "long3"]
    for request in requests:
        assert tokens_of(got[request.request_id, 0]) == right(core, request)


def test_a_deferred_request_can_be_aborted() -> None:
    core, got = small_core(max_num_partial_prefills=1), {}
    for name in ("a", "b", "c"):
        core.add_request(ask(name, 40, 2))
    for _ in range(2):
        step(core, got)
    core.abort("b")
    run(core, got)
    assert order_of(got) == ["b", "a", "c"]
    assert tokens_of(got["b", 0]) == []


def test_a_prompt_that_one_step_finishes_is_not_counted() -> None:
    """Whoever came first and only missed the end of a step is first in the next one."""
    core, got = small_core(max_num_partial_prefills=1), {}
    core.add_request(ask("long", 40, 2))
    step(core, got)
    for name, length in (("first", 5), ("second", 6), ("third", 2)):
        core.add_request(ask(name, length, 8))
    step(core, got)
    assert [sequence_of(core, name).slot >= 0 for name in ("first", "second", "third")] == [True, False, False]
    step(core, got)
    assert sequence_of(core, "second").slot >= 0
    run(core, got)


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"max_num_partial_prefills": 0}, "max_num_partial_prefills"),
        ({"max_num_partial_prefills": 2, "enable_chunked_prefill": False}, "max_num_partial_prefills"),
        ({"priority_ageing_seconds": 1.0}, "priority_ageing_seconds"),
        ({"scheduling_policy": "sjf", "priority_ageing_seconds": 1.0}, "priority_ageing_seconds"),
        ({"scheduling_policy": "priority", "priority_ageing_seconds": -1.0}, "priority_ageing_seconds"),
        ({"scheduling_policy": "priority", "priority_ageing_seconds": np.nan}, "priority_ageing_seconds"),
        ({"scheduling_policy": "priority", "sjf_tokens_per_second": 1.0}, "sjf_tokens_per_second"),
    ],
)
def test_settings_that_cannot_be(settings: dict, param: str) -> None:
    with pytest.raises(ParameterError) as error:
        SchedulerConfig(**settings)
    assert error.value.param == param


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("policy", ["fcfs", "priority", "sjf"])
def test_a_prompt_that_is_scored_keeps_nobody_out(policy: str, ahead: int) -> None:
    """It could use all scored positions of a step for as long as it takes."""
    core = small_core(ahead=ahead, scheduling_policy=policy)
    scored = ask("scored", 40, prompt_logprobs=0)
    short = [ask(name, 3) for name in ("a", "b", "c")]
    core.add_request(scored)
    got: Got = {}
    step(core, got)
    for request in short:
        core.add_request(request)
    run(core, got)
    assert order_of(got) == ["a", "b", "c", "scored"]
    for request in (scored, *short):
        assert tokens_of(got[request.request_id, 0]) == right(core, request)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("limit", [1, None])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_better_prompt_does_not_wait_for_a_worse_one(policy: str, limit: int | None, ahead: int) -> None:
    """There are slots and blocks for both; the long one would take all tokens of four steps."""
    core = small_core(
        RecordingRunner(small_shapes(60, max_model_len=80)),
        ahead=ahead,
        scheduling_policy=policy,
        max_num_partial_prefills=limit,
    )
    prioritised = policy == "priority"
    long = replace(ask("long", 64), priority=9 * prioritised)
    urgent = replace(ask("urgent", 5), priority=-9 * prioritised)
    core.add_request(long)
    got: Got = {}
    step(core, got)
    core.add_request(urgent)
    run(core, got)
    first = "urgent" if prioritised or limit else "long"
    assert order_of(got)[0] == first
    for request in (long, urgent):
        assert tokens_of(got[request.request_id, 0]) == right(core, request)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_half_computed_prompt_that_goes_leaves_its_place(ahead: int) -> None:
    """Aborted, or preempted with nobody beside it: the next long prompt, or it itself, once waited for ever."""
    core = small_core(ahead=ahead, max_num_partial_prefills=1)
    first, second = ask("first", 40, 3), ask("second", 40, 3)
    got: Got = {}
    core.add_request(first)
    step(core, got)
    core.abort("first")
    core.add_request(second)
    step(core, got)
    core.scheduler.state.preempt(sequence_of(core, "second"))
    run(core, got)
    assert tokens_of(got["second", 0]) == right(core, second)
