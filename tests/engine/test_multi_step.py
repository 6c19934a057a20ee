"""Several decode steps in one dispatch: the same tokens, in larger pieces, and nobody waits for a slot meanwhile."""

from typing import Any

import numpy as np
import pytest

from jaxinfer.engine.results import apply_result
from jaxinfer.engine.step.packed import PackedStep
from jaxinfer.engine.step.plan import StepKind, StepResult
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.engine.types import FinishReason
from tests.engine.faulty import FaultyRunner, check_right, faulty_core, run_checked
from tests.engine.ledger import check_blocks, check_slots
from tests.engine.small import Got, RecordingRunner, ask, right, run, small_core, small_shapes, step, tokens_of
from tests.engine.stepping import step_deltas


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("steps", [2, 5, 16])
def test_tokens_are_those_of_single_steps(steps: int, ahead: int) -> None:
    for window in (None, 6):
        core = small_core(FaultyRunner(small_shapes(60, window, decode_steps=steps)), ahead=ahead)
        requests = [ask(f"r{i}", 3 + i, 5 + 4 * i, n=1 + i % 2) for i in range(7)]
        for request in requests:
            core.add_request(request)
        got: Got = {}
        while core.has_work():
            step(core, got)
            check_blocks(core)
            check_slots(core)
        for request in requests:
            for index in range(request.sampling.n):
                deltas = got[request.request_id, index]
                assert tokens_of(deltas) == right(core, request, index)
                assert deltas[-1].finish_reason is FinishReason.LENGTH


class ShortRunner(FaultyRunner):
    """A device that decodes fewer tokens than a row may have, though nothing ends the row."""

    def __init__(self, shapes: EngineShapes):
        super().__init__(shapes)
        self.random = np.random.default_rng(0)
        self.withheld = 0

    def run(self, step: PackedStep) -> Any:
        if step.kind is not StepKind.MULTI_STEP:
            return super().run(step)
        array = step.array.copy()
        counts = self._layouts.multi_token(step.bucket).views(array)["counts"]
        fewer = np.minimum(counts, self.random.integers(1, 5, len(counts)))
        self.withheld += int((counts - fewer).sum())
        counts[:] = fewer
        return super().run(step._replace(array=array))


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("blocks", [60, 24])
def test_a_row_that_gets_fewer_tokens_than_it_may_goes_on_after_them(blocks: int, window: int | None, ahead: int):
    runner = ShortRunner(small_shapes(blocks, window, decode_steps=8))
    core = small_core(runner, ahead=ahead)
    requests = [ask(f"r{i}", 3 + i, 5 + 4 * i, n=1 + i % 2) for i in range(7)]
    for request in requests:
        core.add_request(request)
    check_right(core, run_checked(core), requests)
    assert runner.withheld > 20
    assert core.scheduler.state.kv.blocks_in_use == 0
    assert core.stats().core.step_faults == 0


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("steps", [1, 3, 8])
def test_what_was_decoded_is_found_again(steps: int, ahead: int) -> None:
    """The next turn of a chat has the last answer in its prompt."""
    core = small_core(FaultyRunner(small_shapes(decode_steps=steps)), ahead=ahead)
    first = ask("first", 6, 30)
    core.add_request(first)
    whole = [*first.prompt_token_ids, *tokens_of(run(core)["first", 0])]
    check_blocks(core)
    core.add_request(ask("next", whole, 3))
    assert run(core)["next", 0][0].cached_tokens == 32  # of 36 tokens, in blocks of 4, all but the last one is computed


def test_a_runner_that_gives_a_row_no_token_is_told() -> None:
    runner = ShortRunner(small_shapes(decode_steps=8))
    core = small_core(runner)
    core.add_request(ask("r", 4, 30))
    for _ in range(2):
        core.step()
    plan = runner.plans[-1]
    tokens, counts = np.zeros((plan.num_rows, 8), np.int32), np.zeros(plan.num_rows, np.int32)
    with pytest.raises(AssertionError, match="gave a row no token"):
        apply_result(core.scheduler.state, plan, StepResult(tokens, counts, counts == 0))


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_stop_id_ends_a_row_within_several_steps(ahead: int) -> None:
    free = ask("r", 6, 30)
    tokens = right(small_core(), free)
    end = next(token for i, token in enumerate(tokens) if i > 10 and token not in tokens[:i])
    runner = RecordingRunner(small_shapes(decode_steps=8))
    core = small_core(runner, ahead=ahead)
    core.add_request(ask("r", 6, 30, stop_token_ids=[end]))
    core.add_request(ask("other", 5, 25))
    got = run(core)
    assert tokens_of(got["r", 0]) == tokens[: tokens.index(end) + 1]
    assert (got["r", 0][-1].finish_reason, got["r", 0][-1].stop_token_id) == (FinishReason.STOP, end)
    assert tokens_of(got["other", 0]) == right(core, ask("other", 5, 25))
    assert any(plan.kind is StepKind.MULTI_STEP for plan in runner.plans)
    assert core.stats().core.generation_tokens == len(tokens_of(got["r", 0])) + 25


def test_several_steps_are_as_many_as_they_may_be_and_none_while_somebody_may_enter() -> None:
    runner = RecordingRunner(small_shapes(decode_steps=8))
    core = small_core(runner)
    core.add_request(ask("a", 4, 30))
    run(core)
    counts = [plan.samples.tolist() for plan in runner.plans if plan.kind is StepKind.MULTI_STEP]
    assert counts == [[8], [8], [8], [5]]  # the first token is the prompt's
    runner.plans.clear()
    core.add_request(ask("b", 4, 20))
    step_deltas(core)
    core.add_request(ask("c", 4, 20))
    step_deltas(core)
    step_deltas(core)
    # c enters with the next step, and from then on both decode together.
    assert [plan.kind is StepKind.MULTI_STEP for plan in runner.plans] == [False, False, True]
    assert runner.plans[-1].samples.tolist() == [8, 8]


def test_a_full_house_decodes_several_steps_though_others_wait() -> None:
    runner = RecordingRunner(small_shapes(decode_steps=4))
    core = small_core(runner)
    for i in range(6):
        core.add_request(ask(f"r{i}", 3, 12))
    for _ in range(3):
        step_deltas(core)
    assert core.num_waiting == 2
    assert runner.plans[-1].kind is StepKind.MULTI_STEP
    assert runner.plans[-1].samples.tolist() == [4] * 4


def test_where_blocks_are_short_one_step_is_planned() -> None:
    runner = RecordingRunner(small_shapes(9, decode_steps=16))
    core = small_core(runner, watermark=0.0)
    for i in range(3):
        core.add_request(ask(f"r{i}", 3, 20))
    got = run(core)
    for i in range(3):
        assert tokens_of(got[f"r{i}", 0]) == right(core, ask(f"r{i}", 3, 20))
    assert {plan.kind is StepKind.MULTI_STEP for plan in runner.plans} == {True, False}
    assert core.stats().scheduler.preemptions > 0


def test_a_row_that_tells_log_probabilities_keeps_to_single_steps() -> None:
    runner = RecordingRunner(small_shapes(decode_steps=4))
    core = small_core(runner)
    core.add_request(ask("a", 4, 9, logprobs=1))
    core.add_request(ask("b", 4, 9))
    got = run(core)
    assert not any(plan.kind is StepKind.MULTI_STEP for plan in runner.plans)
    assert all(len(delta.token_ids) == 1 for delta in got["a", 0])


def test_logits_that_are_not_finite_end_a_row_within_several_steps() -> None:
    core, runner = faulty_core(0, small_shapes(decode_steps=8))
    runner.finite_tokens = dict.fromkeys(range(4), 2)
    core.add_request(ask("a", 4, 30))
    got = run(core)
    last = got["a", 0][-1]
    assert (last.finish_reason, last.error is not None) == (FinishReason.ERROR, True)
    assert tokens_of(got["a", 0]) == right(core, ask("a", 4, 30))[:3]
    assert core.stats().core.generation_tokens == 3
