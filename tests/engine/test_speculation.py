"""Steps that draft, on the simulated device: what is planned, taken back, counted, and when drafts are left out."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.scheduler.admission import slot_init
from jaxinfer.engine.scheduler.draft_policy import DraftPolicy
from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.packing import Packer
from jaxinfer.engine.step.plan import StepKind, StepResult
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
    """With such a clock every step drafts."""
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
    assert (stats.accepted_tokens > 0) == (hit_rate > 0)
    assert stats.accepted_tokens <= stats.draft_tokens
    assert sum(stats.accepted_at) == stats.accepted_tokens
    assert stats.speculate_steps == sum(plan.kind is StepKind.SPECULATE for plan in runner.plans) > 0


def test_hits_save_steps() -> None:
    def steps(hit_rate: float) -> int:
        core = small_core(RecordingRunner(shapes(), hit_rate=hit_rate), clock=standing)
        run_all(core, [ask("a", 4, 40)])
        return core.stats().steps

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
    assert core.stats().step_faults == 0
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


class Device:
    """Steps that take a set time by the clock that the policy reads."""

    def __init__(
        self,
        *,
        plain: float,
        drafted: float,
        gain: float,
        missed: float = 0.0,
        each: float | None = None,
        most: int = 3,
    ):
        """missed: seconds that a step that drafts takes more for each of up to 64 before it that did not. each: that it
        takes less for each draft less; None: it has as many as are possible, or none. gain: tokens of a row where it
        has as many."""
        self.now, self.gain, self.missed, self.plain_steps = 0, gain, missed, 0
        self.seconds = {StepKind.DECODE: plain, StepKind.SPECULATE: drafted}
        self.each, self.drawn, self.random = each, Counter[int](), random.Random(1)
        self.policy = DraftPolicy(lambda: self.now, most if each is None else 1, most)
        self.index = 0

    def run(self, steps: int, rows: int = 4, prediction: int | None = None) -> tuple[int, float, float]:
        """How many of them drafted, and seconds and tokens of all."""
        drafts, tokens, start = 0, 0.0, self.now
        for _ in range(steps):
            number = self.policy.drafts(rows, prediction)
            drafted = number > 0
            self.drawn[number] += 1
            kind = StepKind.SPECULATE if drafted else StepKind.DECODE
            plan = RecordingPlan(kind, self.index, rows)
            self.policy.planned(plan)  # pyright: ignore[reportArgumentType]
            less = drafted * (self.policy.most - number) * (self.each or 0.0)
            self.now += round((self.seconds[kind] - less + drafted * self.missed * min(self.plain_steps, 64)) * 1e9)
            self.plain_steps = 0 if drafted else self.plain_steps + 1
            counts = np.array([self.tokens(number) for _ in range(rows)])
            gained = float(counts.mean())
            result = StepResult(counts, counts, counts > 0, drafted=np.ones(rows) if drafted else None)
            self.policy.collected(plan, result)  # pyright: ignore[reportArgumentType]
            drafts, tokens, self.index = drafts + drafted, tokens + gained, self.index + 1
        return drafts, (self.now - start) * 1e-9, tokens

    def tokens(self, drafts: int) -> int:
        """Of a row, each of whose drafts is as likely to be kept."""
        kept = 0
        while kept < drafts and self.random.random() < share_kept(self.gain, self.policy.most):
            kept += 1
        return 1 + kept

    def best(self) -> float:
        """Tokens of a row in a second by the best number of drafts, or by none."""
        share, most, each = share_kept(self.gain, self.policy.most), self.policy.most, self.each or 0.0
        numbers = [most] if self.each is None else range(1, most + 1)
        seconds = {number: self.seconds[StepKind.SPECULATE] - (most - number) * each for number in numbers}
        rates = [sum(share**n for n in range(number + 1)) / time for number, time in seconds.items()]
        return max(1 / self.seconds[StepKind.DECODE], *rates)


@cache
def share_kept(gain: float, most: int) -> float:
    """Of drafts that come after kept ones, so that a row with `most` gets `gain` tokens."""
    shares = np.linspace(0, 1, 2001)
    return float(shares[np.argmin(np.abs(sum(shares**n for n in range(most + 1)) - gain))])


class RecordingPlan:
    """What the policy reads of a plan."""

    def __init__(self, kind: StepKind, index: int, rows: int):
        self.kind, self.index, self.num_rows = kind, index, rows


def test_drafts_that_pay_are_made_almost_always() -> None:
    drafts, seconds, tokens = Device(plain=0.01, drafted=0.015, gain=2.5).run(2000)
    assert drafts > 1900
    assert tokens / seconds > 0.98 * 2.5 / 0.015


def test_drafts_that_do_not_pay_cost_little() -> None:
    drafts, seconds, tokens = Device(plain=0.01, drafted=0.02, gain=1.1).run(4000)
    assert 0 < drafts < 120
    assert tokens / seconds > 0.98 / 0.01


def test_catching_up_is_no_reason_against_drafts() -> None:
    """What a first step takes more says nothing of those that follow."""
    device = Device(plain=0.01, drafted=0.02, gain=1.5, missed=0.002)
    device.run(1000)
    device.gain = 2.5
    device.run(10000)
    assert device.run(200)[0] > 170


@pytest.mark.parametrize("missed", [0.0002, 0.001, 0.002])
def test_catching_up_costs_little_where_drafts_do_not_pay(missed: float) -> None:
    _, seconds, tokens = Device(plain=0.01, drafted=0.02, gain=1.1, missed=missed).run(30000)
    assert tokens / seconds > 0.98 / 0.01


@pytest.mark.parametrize("short", [3e-4, 1e-5])
def test_two_results_that_are_read_at_once_are_soon_forgotten(short: float) -> None:
    """The second takes no time by the host's clock."""
    device = Device(plain=0.01, drafted=0.02, gain=3.0)
    device.run(4)
    device.seconds[StepKind.DECODE] = short
    device.run(1)
    device.seconds[StepKind.DECODE] = 0.01
    device.run(1000)
    assert device.run(100)[0] > 90


def test_what_was_asked_for_a_plan_that_never_came_is_no_step() -> None:
    device = Device(plain=0.01, drafted=0.016, gain=1.05)
    device.run(400)
    assert not device.policy.drafts(4)
    plan = RecordingPlan(StepKind.DECODE, device.index, 3)
    device.policy.planned(plan)  # pyright: ignore[reportArgumentType]
    assert plan.index not in device.policy._begun


@pytest.mark.parametrize("most", [2, 4, 8])
@pytest.mark.parametrize("each", [0.0, 0.001, 0.004])
@pytest.mark.parametrize("gain", [1.02, 1.3, 1.6, 1.9, 2.8])
def test_as_many_drafts_are_made_as_pay_best(gain: float, each: float, most: int) -> None:
    """Where each takes time, by how many are kept."""
    device = Device(plain=0.01, drafted=0.012 + most * each, gain=gain, each=each, most=most)
    device.run(400, rows=16)
    _, seconds, tokens = device.run(3000, rows=16)
    assert tokens / seconds > 0.96 * device.best()


def test_fewer_drafts_are_made_when_fewer_are_kept_and_more_again() -> None:
    device = Device(plain=0.01, drafted=0.018, gain=4.8, each=0.001, most=8)
    for gain, low, high in ((4.8, 6, 8), (1.9, 1, 3), (6.0, 6, 8), (1.0, 0, 0)):
        device.gain = gain
        device.run(2000, rows=16)
        device.drawn.clear()
        device.run(500, rows=16)
        assert sum(device.drawn[number] for number in range(low, high + 1)) > 450


def test_drafting_begins_again_when_texts_change() -> None:
    device = Device(plain=0.01, drafted=0.02, gain=1.0)
    device.run(1000)
    device.gain = 4.0
    device.run(1500)
    drafts, _, _ = device.run(100)
    assert drafts > 80


def test_each_number_of_rows_is_judged_by_itself() -> None:
    device = Device(plain=0.01, drafted=0.011, gain=2.0)
    device.run(200, rows=1)
    device.seconds[StepKind.SPECULATE] = 0.05
    device.run(200, rows=64)
    assert device.run(50, rows=64)[0] < 10
    device.seconds[StepKind.SPECULATE] = 0.011
    assert device.run(50, rows=1)[0] > 40


def test_each_prediction_is_tried_whatever_other_texts_and_the_one_before_it_gained() -> None:
    device = Device(plain=0.01, drafted=0.02, gain=1.0)
    device.run(1000)
    device.gain = 4.0
    assert device.run(60, prediction=1)[0] > 55
    device.gain = 1.0
    assert device.run(60, prediction=2)[0] < 30
    device.gain = 4.0
    assert device.run(60, prediction=3)[0] > 55
    device.gain = 1.0
    assert device.run(100)[0] < 5


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


def test_steps_that_it_was_not_asked_about_teach_it_nothing() -> None:
    """Those of rows under a grammar wait for masks."""
    device = Device(plain=0.01, drafted=0.016, gain=1.05)
    device.run(400)
    for _ in range(60):
        plan = RecordingPlan(StepKind.DECODE, device.index, 4)
        device.policy.planned(plan)  # pyright: ignore[reportArgumentType]
        device.now, device.index = device.now + 40 * 10**6, device.index + 1
        ones = np.ones(4, np.int32)
        device.policy.collected(plan, StepResult(ones, ones, ones > 0))  # pyright: ignore[reportArgumentType]
    assert device.run(100)[0] < 10


def test_steps_that_take_no_time_by_the_clock_are_no_error() -> None:
    device = Device(plain=0.0, drafted=0.01, gain=1.0)
    assert device.run(50)[0] < 50


def test_tries_wait_for_something_to_draft() -> None:
    device = Device(plain=0.01, drafted=0.011, gain=1.0)
    for _ in range(10):
        assert device.policy.drafts(4)
        plan, ones = RecordingPlan(StepKind.SPECULATE, device.index, 4), np.ones(4, np.int32)
        device.policy.planned(plan)  # pyright: ignore[reportArgumentType]
        device.now, device.index = device.now + 10**7, device.index + 1
        result = StepResult(ones, ones, ones > 0, drafted=0 * ones)
        device.policy.collected(plan, result)  # pyright: ignore[reportArgumentType]
    device.gain = 3.0
    assert device.run(100)[0] > 80


def test_what_steps_have_computed_and_drawn_is_counted_and_not_what_was_planned() -> None:
    core = small_core(RecordingRunner(shapes(), hit_rate=0.5), ahead=1, clock=standing)
    asked = [ask(name, 3 + number, 20 + 5 * number) for number, name in enumerate("abcd")]
    run_all(core, asked)
    stats, drawn = core.stats(), sum(20 + 5 * number for number in range(4))
    assert stats.generation_tokens == drawn
    assert stats.iteration_tokens == sum(3 + number for number in range(4)) + drawn
    assert stats.decode_tokens >= stats.draft_tokens


def test_engines_that_do_not_draft_have_no_places_of_drafts() -> None:
    assert small_core(RecordingRunner(small_shapes(decode_steps=4))).stats().accepted_at == ()


def test_a_draft_that_ends_a_row_is_an_accepted_one() -> None:
    tokens, more = right(small_core(), ask("r", 6, 30)), set()
    for end in sorted(set(tokens[3:16]) - set(tokens[:3])):
        runner = RecordingRunner(shapes(), hit_rate=1.0)
        core = small_core(runner, clock=standing)
        known = tokens_of(run_all(core, [ask("r", 6, 30, stop_token_ids=[end])])["r", 0])
        assert known == tokens[: tokens.index(end) + 1]
        # Each step gives a token more than drafts are kept, but one that ends with a draft.
        more.add(core.stats().accepted_tokens + len(runner.plans) - len(known))
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
    assert core.stats().preemptions > 0
    inits = [init for plan in runner.plans for init in plan.admissions]
    assert len(inits) == 4 + core.stats().preemptions
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
        stats.accepted_tokens,
        stats.draft_tokens - stats.accepted_tokens,
    )
    assert stats.draft_tokens > 30
    got = run_all(core, [ask("c", 4, 20)])
    assert all(delta.accepted_prediction == delta.rejected_prediction == 0 for delta in got["c", 0])
    assert core.stats().draft_tokens > stats.draft_tokens


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
