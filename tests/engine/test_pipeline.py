"""Plans of several stages: which rows a step takes, and how busy a simulated pipeline is with them."""

from collections.abc import Callable
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.simulated_pipeline import SimulatedPipeline
from jaxinfer.engine.scheduler.stage_rows import StageRows
from jaxinfer.engine.step.plan import StepKind
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.errors import ParameterError
from jaxinfer.speculation import Speculation
from tests.engine.small import RecordingRunner, ask, right, run, small_core, small_shapes, tokens_of

STAGES = 4


def constant(tokens: int) -> float:
    return 1.0


def piped(
    *, seconds: Callable[[int], float] = constant, ahead: int | None = STAGES, draws: bool = True, **sizes: Any
) -> tuple[EngineCore, RecordingRunner, SimulatedPipeline]:
    """A core over a pipeline whose clock only results move."""
    stages = sizes.setdefault("stages", STAGES)
    pipeline = SimulatedPipeline(stages, seconds)
    splits = sizes.pop("enable_chunked_prefill", True)
    runner = RecordingRunner(small_shapes(**sizes), pipeline=pipeline, draws=draws)
    core = small_core(runner, ahead=ahead, clock=pipeline.clock, enable_chunked_prefill=splits)
    return core, runner, pipeline


def many(count: int, prompt: int, tokens: int) -> list[GenerateRequest]:
    return [ask(f"r{number}", prompt, tokens, seed=number) for number in range(count)]


def all_right(core: EngineCore, requests: list[GenerateRequest]) -> None:
    for request in requests:
        core.add_request(request)
    got = run(core)
    for request in requests:
        assert tokens_of(got[request.request_id, 0]) == right(core, request)


WIDE: dict[str, Any] = {
    "max_num_seqs": 16,
    "max_num_batched_tokens": 64,
    "max_scored": 16,
    "max_model_len": 400,
    "blocks": 2000,
}


@pytest.mark.parametrize("rows", [4, 5, 10, 16])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_rows_come_again_when_their_token_is_back(rows: int, stages: int) -> None:
    """But at the beginning and at the end, where there is nothing else to do."""
    core, runner, _ = piped(stages=stages, ahead=stages, **WIDE)
    all_right(core, many(rows, 5, 40))
    steps: dict[int, list[int]] = {}
    for plan in runner.plans[3 * stages : -3 * stages]:
        for slot in plan.slots[plan.samples > 0].tolist():
            steps.setdefault(slot, []).append(plan.index)
    assert len(steps) == rows
    assert {later - earlier for own in steps.values() for earlier, later in pairwise(own)} == {stages}


def test_rows_are_spread_over_steps() -> None:
    core, runner, _ = piped(**WIDE)
    all_right(core, many(16, 5, 60))
    decode = [plan.num_rows for plan in runner.plans if plan.kind is StepKind.DECODE]
    assert set(decode[20:-20]) == {4}


@pytest.mark.few(2)
@pytest.mark.parametrize("rows", [4, 5, 6, 7, 9, 15, 16])
def test_steady_decode_keeps_all_stages_busy(rows: int) -> None:
    core, _, pipeline = piped(**WIDE)
    all_right(core, many(rows, 5, 390))
    assert min(pipeline.busy(100, 300)) >= 0.98


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_fewer_rows_than_stages_wait_for_no_host(rows: int) -> None:
    """Each stage has as many steps as there are rows while a token goes around."""
    core, _, pipeline = piped(**WIDE)
    all_right(core, many(rows, 5, 390))
    assert fmean(pipeline.busy(100, 300)) == pytest.approx(rows / STAGES, abs=0.01)


def test_chunks_of_a_prompt_follow_each_other() -> None:
    """32 of them take 30 % of what stages in turn would."""
    core, runner, pipeline = piped(seconds=lambda tokens: 1.0 + tokens / 16, **{**WIDE, "max_model_len": 2200})
    all_right(core, [ask("long", 32 * 64, 1)])
    in_turn = 32 * STAGES * (1.0 + 64 / 16)
    assert pipeline.now <= 0.30 * in_turn
    assert len(runner.plans) >= 32
    assert pipeline.busy(0, 32 * 5.0)[0] > 0.98


def test_prompts_are_cut_into_equal_steps_when_nobody_waits() -> None:
    core, runner, _ = piped(**{**WIDE, "max_num_batched_tokens": 400, "max_model_len": 1500})
    all_right(core, [ask("long", 1000, 1)])
    counts = [int(plan.counts.sum()) for plan in runner.plans]
    assert counts == [250, 188, 141, 106, 79, 64, 64, 64, 44]


def test_prompts_beside_rows_that_decode_are_spread_over_more_steps() -> None:
    core, runner, _ = piped(**{**WIDE, "max_num_batched_tokens": 400, "max_model_len": 4200})
    for request in many(8, 5, 200):
        core.add_request(request)
    for _ in range(20):
        core.step()
    before = len(runner.plans)
    core.add_request(ask("long", 4000, 1))
    run(core)
    counts = [len(plan.tokens) for plan in runner.plans[before:] if plan.kind is StepKind.MIXED]
    assert counts[0] == 125
    assert sum(counts) == 4000
    assert set(counts[-5:-1]) == {64}


@pytest.mark.parametrize("prompt", [100, 300])
def test_prompts_that_may_not_be_split_are_not(prompt: int) -> None:
    core, runner, _ = piped(**{**WIDE, "max_num_batched_tokens": 300}, enable_chunked_prefill=False)
    all_right(core, [*many(4, 5, 20), ask("long", prompt, 3), ask("other", prompt, 3)])
    assert sorted(len(plan.tokens) for plan in runner.plans if plan.kind is StepKind.MIXED)[-1] >= prompt


def test_a_step_names_what_its_rows_need() -> None:
    core, runner, _ = piped(**WIDE)
    all_right(core, many(6, 5, 20))
    drawn: dict[int, int] = {}
    for plan in runner.plans:
        held = plan.slots[: plan.num_decode].tolist()
        assert plan.needs == max((drawn.get(slot, -1) for slot in held), default=-1)
        drawn |= dict.fromkeys(plan.slots[plan.samples > 0].tolist(), plan.index)


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("rows", [1, 7])
def test_one_that_needs_less_than_it_says_draws_wrong_tokens(
    rows: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that does not wait for the newest tokens: the first stage has old ones."""
    core, runner, _ = piped(stages=stages, ahead=stages, **WIDE)
    dispatch = runner.dispatch
    monkeypatch.setattr(runner, "dispatch", lambda plan, *rest: dispatch(plan._replace(needs=plan.needs - 1), *rest))
    with pytest.raises(AssertionError):
        all_right(core, many(rows, 5, 20))


def test_rows_that_are_planned_too_early_make_stages_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are right, since a step waits for what it needs."""
    monkeypatch.setattr(StageRows, "due", lambda self, slots, step: slots)
    core, _, pipeline = piped(**WIDE)
    all_right(core, many(16, 5, 200))
    assert max(pipeline.busy(50, 150)) < 0.3


def test_as_many_steps_are_in_flight_as_there_are_stages_and_one() -> None:
    core, _, _ = piped(ahead=None, **WIDE)
    most = 0
    for request in many(16, 5, 40):
        core.add_request(request)
    while core.has_work():
        core.step()
        most = max(most, len(core.in_flight))
    assert most == STAGES
    assert core.steps_ahead == STAGES


@pytest.mark.few(3)
@pytest.mark.parametrize("hit_rate", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("rows", [1, 3, 8, 16])
def test_rows_that_draft_are_spread_over_steps_and_keep_all_stages_busy(rows: int, hit_rate: float) -> None:
    """However many of their drafts are kept; which the first stage learns before the host does."""
    pipeline = SimulatedPipeline(STAGES, constant)
    runner = RecordingRunner(
        small_shapes(stages=STAGES, drafting=Speculation(3), **WIDE), pipeline=pipeline, hit_rate=hit_rate
    )
    core = small_core(runner, ahead=STAGES, clock=lambda: 0)
    all_right(core, many(rows, 5, 300))
    drafting = [plan for plan in runner.plans if plan.kind is StepKind.SPECULATE]
    assert max(plan.num_rows for plan in drafting) <= -(-rows // STAGES)
    start, end = pipeline.now * 0.2, pipeline.now * 0.5
    assert min(pipeline.busy(start, end)) >= 0.98 * min(rows / STAGES, 1)


def test_a_row_alone_drafts_again_while_its_step_is_in_flight() -> None:
    """It waits for its tokens on the device, not for the host: however many it may get."""
    runner = RecordingRunner(small_shapes(stages=2, drafting=Speculation(3), **WIDE), hit_rate=0.5)
    core = small_core(runner, ahead=2, clock=lambda: 0)
    core.add_request(ask("a", 5, 100))
    ahead = []
    while core.has_work():
        core.step()
        own = [plan for plan in runner.plans[-len(core.in_flight) :] if core.in_flight]
        ahead.append(sum(plan.kind is StepKind.SPECULATE for plan in own))
    assert max(ahead) == 2
    assert sum(count == 2 for count in ahead) > 0.4 * len(ahead)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"decode_steps": 2}, "decode_steps"),
        ({"drafting": Speculation(2, method="eagle3", model="m")}, "speculative_config"),
    ],
)
def test_what_a_pipeline_does_not_do_is_refused(asked: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError, match=r"(in|of) a pipeline") as error:
        small_shapes(stages=2, **asked)
    assert error.value.param == name
