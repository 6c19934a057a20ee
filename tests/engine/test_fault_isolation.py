"""A request that fails by itself takes nobody along; what fails only together comes to an end."""

import random
from typing import cast

import pytest

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.step.plan import StepPlan
from jaxinfer.engine.types import FinishReason, GenerateRequest
from tests.engine.faulty import FAULTS, FaultAt, FaultyRunner, check_right, faulty_core, mixed, run_checked
from tests.engine.small import Got, ask, right, small_shapes, step, tokens_of
from tests.engine.stepping import step_deltas
from tests.turns import one_of


class Poison:
    """Fails the steps that one of `names` is in, from a position on. failed: who was in each that failed."""

    def __init__(self, core: EngineCore, runner: FaultyRunner, *names: str, at: FaultAt = "collect", position: int = 0):
        self._core, self._at, self._names, self._position = core, at, names, position
        self._bad: set[int] = set()
        self._waiting_forks: dict[int, list[str]] = {}
        self.failed: list[list[str]] = []
        runner.fails = self

    def __call__(self, at: FaultAt, plan: StepPlan) -> bool:
        if at == "dispatch":
            ends = self._ends(plan)
            self._waiting_forks[plan.index] = [name for name, _ in ends]
            if any(name in self._names and end > self._position for name, end in ends):
                self._bad.add(plan.index)
        failed = at == self._at and plan.index in self._bad
        if failed:
            self.failed.append(self._waiting_forks[plan.index])
        return failed

    def _ends(self, plan: StepPlan) -> list[tuple[str, int]]:
        """While the step is dispatched, its slots are still those of its sequences."""
        sequences = [self._core.scheduler.state.table.sequences[slot] for slot in plan.slots.tolist()]
        ends = (plan.starts + plan.counts).tolist()
        return [
            (sequence.request_id, end) for sequence, end in zip(sequences, ends, strict=True) if sequence is not None
        ]


def ended_with_error(got: Got) -> set[str]:
    return {name for (name, _), deltas in got.items() if deltas[-1].finish_reason is FinishReason.ERROR}


def check_others_right(core: EngineCore, got: Got, requests: list[GenerateRequest], failed: set[str]) -> None:
    """Those in `failed` end with an error after right tokens; all others as if they were not there."""
    assert ended_with_error(got) == failed
    check_right(core, got, [request for request in requests if request.request_id not in failed])
    for request in requests:
        for index in range(request.sampling.n) if request.request_id in failed else ():
            tokens = tokens_of(got.get((request.request_id, index), []))
            assert tokens == right(core, request, index)[: len(tokens)]


@pytest.mark.few(28)
@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("at", FAULTS)
@pytest.mark.parametrize(("name", "position"), [("r3", 0), ("r3", 8), ("r3", 24), ("r2", 0), ("r2", 9), ("r4", 0)])
def test_who_fails_by_itself_ends_and_all_others_are_right(name: str, position: int, at: FaultAt, ahead: int) -> None:
    core, runner = faulty_core(ahead, small_shapes(blocks=40))
    poison = Poison(core, runner, name, at=at, position=position)
    requests = mixed()
    for request in requests:
        core.add_request(request)
    check_others_right(core, run_checked(core), requests, {name})
    assert poison.failed[-1] == [name]


@pytest.mark.long
@pytest.mark.parametrize("policy", one_of(3, ["fcfs", "priority", "sjf"]))
def test_several_that_fail_by_themselves_are_found(policy: str) -> None:
    """In random crowds short of blocks, with steps of several tokens, at random positions."""
    for seed in range(60):
        draw = random.Random(seed)
        shapes = small_shapes(blocks=draw.choice([16, 24, 40]), decode_steps=draw.choice([1, 4]))
        retries, partial = draw.choice([1, 2]), draw.choice([None, 1])
        core, runner = faulty_core(
            draw.randrange(4),
            shapes,
            scheduling_policy=policy,
            max_step_retries=retries,
            max_num_partial_prefills=partial,
        )
        names = {f"r{number}" for number in draw.sample(range(10), 2)}
        Poison(core, runner, *names, at=draw.choice(FAULTS), position=draw.randrange(3))
        requests = mixed(10)
        for request in requests:
            core.add_request(request)
        check_others_right(core, run_checked(core), requests, names)


@pytest.mark.parametrize("ahead", [0, 3])
def test_two_that_fail_at_different_places_are_found_in_turn(ahead: int) -> None:
    """The second soon after the first: a round that has found somebody does not stand against another."""
    core, runner = faulty_core(ahead)
    early = Poison(core, runner, "early")
    late = Poison(core, runner, "late", position=11)
    runner.fails = lambda at, plan: early(at, plan) | late(at, plan)
    requests = [ask(name, 5, 20) for name in ("a", "late", "early", "b")]
    for request in requests:
        core.add_request(request)
    check_others_right(core, run_checked(core), requests, {"early", "late"})


def test_faults_that_passed_long_ago_do_not_stand_against_a_trial() -> None:
    core, runner = faulty_core(ahead=0, shapes=small_shapes(max_num_batched_tokens=200))
    requests = [ask(name, 5, 40) for name in ("a", "bad", "b")]
    for request in requests:
        core.add_request(request)
    got: Got = {}
    for _ in range(2):
        runner.fail_once("collect")
        step(core, got)
    assert core.scheduler.isolation.active
    while core.scheduler.isolation.active:
        step(core, got)
    Poison(core, runner, "bad", position=30)
    check_others_right(core, run_checked(core, got), requests, {"bad"})


def test_a_trial_goes_as_far_as_the_step_that_failed() -> None:
    """A step of eight tokens a row fails at the sixth; alone, each token has a step of its own."""
    shapes = small_shapes(decode_steps=8, max_num_batched_tokens=200)
    core, runner = faulty_core(ahead=0, shapes=shapes, max_step_retries=1)
    requests = [ask(name, 5, 30) for name in ("a", "bad", "b")]
    for request in requests:
        core.add_request(request)
    Poison(core, runner, "bad", position=11)
    check_others_right(core, run_checked(core), requests, {"bad"})


def test_many_that_fail_by_themselves_are_found_where_others_pass_between() -> None:
    core, runner = faulty_core(ahead=1, shapes=small_shapes(blocks=200, max_num_seqs=16, max_scored=16))
    names = ["bad"] * 6 + ["good"] + ["bad"] * 6 + ["good"] * 3
    requests = [ask(f"{name}{number}", 1, 5) for number, name in enumerate(names)]
    bad = {request.request_id for request in requests if request.request_id.startswith("bad")}
    Poison(core, runner, *bad)
    for request in requests:
        core.add_request(request)
    check_others_right(core, run_checked(core), requests, bad)


def test_one_that_comes_again_and_again_ends_nobody_else() -> None:
    """As a client does that tries again after an error."""
    core, runner = faulty_core(ahead=1)
    Poison(core, runner, *(f"bad{i}" for i in range(5)))
    stays = ask("stays", 5, 40)
    core.add_request(stays)
    got: Got = {}
    for number in range(5):
        core.add_request(ask(f"bad{number}", 6))
        while ("stays", 0) not in got or (f"bad{number}", 0) not in got:
            step(core, got)
    run_checked(core, got)
    assert ended_with_error(got) == {f"bad{number}" for number in range(5)}
    check_right(core, got, [stays])


def with_trials_ahead(requests: list[GenerateRequest]) -> EngineCore:
    """All of them fail together, at their first step, until each is to be alone; nothing fails any more."""
    core, runner = faulty_core(ahead=1)
    poison = Poison(core, runner, *(request.request_id for request in requests), at="dispatch")
    for request in requests:
        core.add_request(request)
    for _ in range(2):
        assert step_deltas(core) == []
    assert poison.failed == [[request.request_id for request in requests]] * 2
    runner.fail_never()
    return core


def test_nobody_shares_a_step_with_one_on_trial() -> None:
    """Four fail together twice; then each has its own steps until it has drawn, and they go on together."""
    requests = [ask(name, 5, 12) for name in "abcd"]
    core = with_trials_ahead(requests)
    got: Got = {}
    late = ask("late", 3, 4)
    core.add_request(late)
    order: list[str] = []
    step(core, got)
    while core.scheduler.isolation.active:
        (running,) = [sequence.request_id for sequence in core.scheduler.state.table.sequences if sequence is not None]
        order += [running] if running not in order else []
        step(core, got)
    assert order == list("abcd")
    assert all(1 <= len(tokens_of(got[name, 0])) <= 3 for name in order)
    check_right(core, run_checked(core, got), [*requests, late])


def test_what_fails_only_together_comes_to_an_end() -> None:
    """No step of one row fails: a round of trials finds nobody, and grants no second one."""
    core, runner = faulty_core(ahead=0)
    runner.fails = lambda at, plan: at == "collect" and len(plan.slots) > 1
    requests = [ask(name, 5, 20) for name in "abcd"]
    for request in requests:
        core.add_request(request)
    got = run_checked(core)
    assert core.stats().core.step_faults <= 2 + 3
    assert ended_with_error(got)
    for request in requests:
        tokens = tokens_of(got[request.request_id, 0])
        assert tokens == right(core, request)[: len(tokens)]


def test_a_device_that_fails_every_step_is_not_tried_once_a_request() -> None:
    core, runner = faulty_core(ahead=0, shapes=small_shapes(blocks=200, max_num_seqs=16, max_scored=16))
    runner.fails = lambda at, plan: at == "collect"
    for number in range(14):
        core.add_request(ask(f"r{number}", 1))
    got = run_checked(core)
    assert len(ended_with_error(got)) == 14
    assert {deltas[0].error for deltas in got.values()} == {"computing the next token failed with StepBroke (tries: 3)"}
    assert core.stats().core.step_faults == 2 + 8 + 1


@pytest.mark.parametrize("retries", [0, 1, 4])
def test_it_is_the_last_try_that_is_alone(retries: int) -> None:
    core, runner = faulty_core(ahead=0, max_step_retries=retries)
    poison = Poison(core, runner, "bad")
    requests = [ask(name, 5, 8) for name in ("a", "bad", "b")]
    for request in requests:
        core.add_request(request)
    got = run_checked(core)
    assert ended_with_error(got) == ({"bad"} if retries else {"a", "bad", "b"})
    assert [len(held) for held in poison.failed] == [3] * retries + [1 if retries else 3]


def test_a_step_that_fails_after_an_abort_on_trial_is_nobody_elses() -> None:
    requests = [ask(name, 5, 8) for name in "abc"]
    core = with_trials_ahead(requests)
    got: Got = {}
    step(core, got)
    core.abort("a")
    cast(FaultyRunner, core.runner).fail_once("collect")
    run_checked(core, got)
    assert core.stats().core.step_faults == 3
    assert got["a", 0][-1].finish_reason is FinishReason.ABORT
    check_right(core, got, requests[1:])


@pytest.mark.parametrize("whom", ["on trial", "next"])
def test_an_abort_on_trial_lets_the_others_go_on(whom: str) -> None:
    requests = [ask(name, 5, 8) for name in "abc"]
    core = with_trials_ahead(requests)
    got: Got = {}
    step(core, got)
    current = core.scheduler.isolation.current
    assert current is not None
    assert current.request_id == "a"
    gone = "a" if whom == "on trial" else "b"
    core.abort(gone)
    run_checked(core, got)
    assert got[gone, 0][-1].finish_reason is FinishReason.ABORT
    check_right(core, got, [request for request in requests if request.request_id != gone])
