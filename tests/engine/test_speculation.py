"""Steps that draft, on the simulated device: what is planned, taken back, counted, and when drafts are left out."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.scheduler.admission import slot_init
from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.packing import Packer
from jaxinfer.engine.step.plan import StepKind
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.engine.types import FinishReason, GenerateRequest
from jaxinfer.errors import ParameterError
from jaxinfer.speculation import Speculation
from tests.engine.small import (
    VOCABULARY,
    Got,
    RecordingRunner,
    ask,
    right,
    run,
    sequence_of,
    small_core,
    small_shapes,
    tokens_of,
)

NGRAM = Speculation(3, 1, 2)


def shapes(**changes) -> EngineShapes:
    return small_shapes(**{"drafting": NGRAM, **changes})


def run_all(core: EngineCore, requests: Sequence[GenerateRequest]) -> Got:
    for request in requests:
        core.add_request(request)
    return run(core)


def standing() -> int:
    """With such a clock drafting stays on."""
    return 0


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("hit_rate", [0.0, 0.5, 1.0])
def test_any_share_of_hits_gives_the_same_tokens(hit_rate: float, ahead: int) -> None:
    runner = RecordingRunner(shapes(), hit_rate=hit_rate)
    core = small_core(runner, ahead=ahead, clock=standing)
    asked = [ask(name, 3 + number, 9 + 5 * number) for number, name in enumerate("abcdef")]
    outputs = run_all(core, asked)
    for request in asked:
        assert tokens_of(outputs[request.request_id, 0]) == right(core, request)
    stats = core.stats()
    assert (stats.drafts.accepted_tokens > 0) == (hit_rate > 0)
    assert stats.drafts.accepted_tokens <= stats.drafts.draft_tokens
    assert sum(stats.drafts.accepted_at) == stats.drafts.accepted_tokens
    assert stats.steps.speculate_steps == sum(plan.kind is StepKind.SPECULATE for plan in runner.plans) > 0


def test_hits_save_steps() -> None:
    def steps(hit_rate: float) -> int:
        core = small_core(RecordingRunner(shapes(), hit_rate=hit_rate), clock=standing)
        run_all(core, [ask("a", 4, 40)])
        return core.stats().core.steps

    assert steps(1.0) < 0.6 * steps(0.0)


def test_no_row_is_planned_beyond_its_end() -> None:
    runner = RecordingRunner(shapes(), hit_rate=1.0)
    core = small_core(runner, ahead=1, clock=standing)
    outputs = run_all(core, [ask("a", 4, 2), ask("b", 4, 11), ask("c", 4, 44)])
    assert {deltas[-1].finish_reason for deltas in outputs.values()} == {FinishReason.LENGTH}
    for plan in runner.plans:
        assert (plan.samples <= 4).all()


def test_rows_that_want_logprobs_draft_and_those_with_a_prompt_beside_them_do_not() -> None:
    runner = RecordingRunner(shapes(), hit_rate=1.0)
    core = small_core(runner, clock=standing)
    got = run_all(core, [ask("a", 4, 9, logprobs=1)])
    assert [plan.kind for plan in runner.plans[:3]] == [StepKind.MIXED, StepKind.SPECULATE, StepKind.SPECULATE]
    assert core.stats().core.step_faults == 0
    told = [entry for delta in got["a", 0] for entry in delta.logprobs or []]
    assert [entry.token_id for entry in told] == tokens_of(got["a", 0])
    runner.plans.clear()
    core.add_request(ask("b", 4, 9))
    core.step()
    core.add_request(ask("c", 40, 2))
    core.step()
    assert runner.plans[-1].kind is StepKind.MIXED
    run(core)


def test_admissions_bring_all_tokens_where_drafts_are_made() -> None:
    for drafting in (NGRAM, None):
        runner = RecordingRunner(shapes(drafting=drafting))
        core = small_core(runner, clock=standing)
        run_all(core, [ask("a", [3, 4, 5, 6, 7], 3)])
        (admission,) = runner.plans[0].admissions
        assert (None if admission.tokens is None else admission.tokens.tolist()) == (
            [3, 4, 5, 6, 7] if drafting else None
        )


def test_the_engine_tells_of_predictions_while_they_run() -> None:
    core, told = small_core(RecordingRunner(shapes(), hit_rate=0.5)), []
    policy = core.scheduler.drafts
    assert policy is not None

    def tell(rows: int, prediction: int | None = None, constrained: bool = False) -> int:
        told.append(prediction)
        return 3

    policy.drafts = tell
    run_all(core, [ask("a", 4, 9)])
    run_all(core, [predicting("b", 4, 9, n=2), ask("c", 4, 30)])
    run_all(core, [ask("d", 4, 9)])
    assert [one for one, before in zip(told, [0, *told], strict=False) if one != before] == [None, 1, 2, None]


def test_what_steps_have_computed_and_drawn_is_counted_and_not_what_was_planned() -> None:
    core = small_core(RecordingRunner(shapes(), hit_rate=0.5), ahead=1, clock=standing)
    asked = [ask(name, 3 + number, 20 + 5 * number) for number, name in enumerate("abcd")]
    run_all(core, asked)
    stats, drawn = core.stats(), sum(20 + 5 * number for number in range(4))
    assert stats.core.generation_tokens == drawn
    assert stats.steps.iteration_tokens == sum(3 + number for number in range(4)) + drawn
    assert stats.steps.decode_tokens >= stats.drafts.draft_tokens


def test_engines_that_do_not_draft_have_no_places_of_drafts() -> None:
    assert small_core(RecordingRunner(small_shapes(decode_steps=4))).stats().drafts.accepted_at == ()


def test_a_draft_that_ends_a_row_is_an_accepted_one() -> None:
    tokens, more = right(small_core(), ask("r", 6, 30)), set()
    for end in sorted(set(tokens[3:16]) - set(tokens[:3])):
        runner = RecordingRunner(shapes(), hit_rate=1.0)
        core = small_core(runner, clock=standing)
        known = tokens_of(run_all(core, [ask("r", 6, 30, stop_token_ids=[end])])["r", 0])
        assert known == tokens[: tokens.index(end) + 1]
        # Each step gives a token more than drafts are kept, but one that ends with a draft.
        more.add(core.stats().drafts.accepted_tokens + len(runner.plans) - len(known))
    assert more == {0, 1}


PREDICTION = [50, 51, 52, 53]


def predicting(name: str, prompt: Sequence[int] | int, tokens: int = 6, **changes) -> GenerateRequest:
    return replace(ask(name, prompt, tokens, **changes), prediction=PREDICTION)


@pytest.mark.parametrize(
    ("prompt", "places"),
    [([3, 4, 5], [4, 5, *PREDICTION]), ([3], [3, *PREDICTION]), (range(45), [43, 44, 50]), (range(47), [45])],
)
def test_a_prediction_comes_after_the_end_of_the_prompt_and_is_cut_to_what_that_leaves(prompt, places) -> None:
    runner = RecordingRunner(shapes(max_num_batched_tokens=48))
    core = small_core(runner, clock=standing)
    request = predicting("a", list(prompt), 1)
    run_all(core, [request])
    (init,) = runner.plans[0].admissions
    assert init.prediction.tolist() == places
    written = {}
    for history in Packer(runner.shapes).history([*init.history(48)]):
        view = Layouts(runner.shapes).history(history.bucket).views(history.array)
        real = view["slots"] == init.slot
        written |= dict(zip(view["positions"][real].tolist(), view["tokens"][real].tolist(), strict=True))
    assert written == dict(enumerate(prompt)) | dict(enumerate(places, 48 - len(places)))


def test_own_tokens_go_before_those_of_a_prediction() -> None:
    """As where a sequence comes back that has reached its prediction's place."""
    core = small_core(RecordingRunner(shapes(max_num_batched_tokens=48)), clock=standing)
    core.add_request(predicting("a", 20))
    core.step()
    sequence = sequence_of(core, "a")
    init = slot_init(sequence, core.runner.shapes)._replace(tokens=np.arange(45, dtype=np.int32))
    (history,) = Packer(core.runner.shapes).history([*init.history(48)])
    view = Layouts(core.runner.shapes).history(history.bucket).views(history.array)
    positions = view["positions"][view["slots"] == init.slot].tolist()
    assert positions == list(range(48))
    assert view["tokens"][:48].tolist() == [*range(45), *PREDICTION[1:]]


def test_forks_and_those_that_come_back_bring_their_prediction() -> None:
    runner = RecordingRunner(shapes(blocks=14), hit_rate=0.5)
    core = small_core(runner, clock=standing, caching=False)
    asked = [predicting("a", 6, 30, n=2), predicting("b", 6, 30), ask("c", 6, 30)]
    got = run_all(core, asked)
    for request in asked:
        for index in range(request.sampling.n):
            assert tokens_of(got[request.request_id, index]) == right(core, request, index)
    assert core.stats().scheduler.preemptions > 0
    inits = [init for plan in runner.plans for init in plan.admissions]
    assert len(inits) == 4 + core.stats().scheduler.preemptions
    by_prompt = {tuple(one.prompt_token_ids): one for one in asked}
    for init in inits:
        assert init.tokens is not None
        prompt = tuple(init.tokens[:6].tolist())
        has_prediction = len(by_prompt[prompt].prediction) > 0
        assert init.prediction.tolist() == ([*prompt[-2:], *PREDICTION] if has_prediction else [])


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("hit_rate", [0.0, 0.5, 1.0])
def test_deltas_count_what_becomes_of_drafts_from_predictions(hit_rate: float, ahead: int) -> None:
    runner = RecordingRunner(shapes(), hit_rate=hit_rate)
    core = small_core(runner, ahead=ahead, clock=standing)
    got = run_all(core, [predicting("a", 4, 20), predicting("b", 5, 31, n=2)])
    deltas, stats = [delta for sequence in got.values() for delta in sequence], core.stats()
    accepted = sum(delta.accepted_prediction for delta in deltas)
    assert (accepted, sum(delta.rejected_prediction for delta in deltas)) == (
        stats.drafts.accepted_tokens,
        stats.drafts.draft_tokens - stats.drafts.accepted_tokens,
    )
    assert stats.drafts.draft_tokens > 30
    got = run_all(core, [ask("c", 4, 20)])
    assert all(delta.accepted_prediction == delta.rejected_prediction == 0 for delta in got["c", 0])
    assert core.stats().drafts.draft_tokens > stats.drafts.draft_tokens


@pytest.mark.parametrize(
    ("prediction", "message"),
    [([0, VOCABULARY], "token id 61"), ([-1], "token id -1"), ([1.5], "integers"), (np.ones(2), "integers")],
)
def test_wrong_predictions_are_refused(prediction, message: str) -> None:
    core = small_core(RecordingRunner(shapes()))
    with pytest.raises(ParameterError, match=message) as caught:
        core.add_request(replace(ask("a", 4), prediction=prediction))
    assert caught.value.param == "prediction"
    assert not core.has_work()


def test_a_prediction_needs_an_engine_that_drafts() -> None:
    with pytest.raises(ParameterError, match="--speculative-config") as caught:
        small_core().add_request(predicting("a", 4))
    assert caught.value.param == "prediction"
    small_core().add_request(replace(ask("a", 4), prediction=np.zeros(0, np.int32)))


def test_a_draft_model_takes_no_predictions() -> None:
    core = small_core(RecordingRunner(shapes(drafting=Speculation(3, method="draft_model", model="m"))))
    with pytest.raises(ParameterError, match='"ngram"'):
        core.add_request(predicting("a", 4))
