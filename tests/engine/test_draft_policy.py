"""DraftPolicy: how many drafts it chooses, beside a device whose steps take set times by the clock that it reads."""

import itertools
import random
from collections import Counter, deque
from collections.abc import Callable
from functools import cache
from itertools import groupby

import numpy as np
import pytest

from jaxinfer.engine.scheduler.draft_policy import DraftPolicy, _Size
from jaxinfer.engine.scheduler.repetition import Repetition
from jaxinfer.engine.step.plan import StepKind, StepResult
from jaxinfer.speculation import Speculation


class Device:
    """Steps of so many drafts take `seconds`, times a random number where there is noise, and their results are read as
    many steps late.

    plain, drafted: seconds of steps without and with `most` drafts; each: that one takes less for each draft less;
    None: it has as many, or none. times: seconds by the number of drafts, instead of these. gain: tokens of a row where
    it has as many. missed: seconds that a step that drafts takes more for each of up to 64 before it that did not.
    phases: steps after which drafts are kept almost always, and as many after which they hardly are, one of four times;
    0: all alike.
    """

    def __init__(
        self,
        *,
        plain: float = 0.01,
        drafted: float = 0.01,
        gain: float,
        missed: float = 0.0,
        each: float | None = None,
        most: int = 3,
        times: Callable[[int], float] | None = None,
        late: int = 0,
        noise: float = 0.0,
        phases: int = 0,
        stages: int = 1,
    ):
        self.now, self.gain, self.missed, self.plain_steps = 0, gain, missed, 0
        self.seconds = {StepKind.DECODE: plain, StepKind.SPECULATE: drafted}
        self.each, self.times, self.noise, self.late, self.phases = each, times, noise, late, phases
        self.drawn, self.random = Counter[int](), random.Random(1)
        self.fewest = most if each is None and times is None else 1
        self.policy = DraftPolicy(lambda: self.now, self.fewest, most, stages)
        self.numbers: list[int] = []
        self.timed: list[bool] = []
        self.begun: deque[tuple[RecordingPlan, StepResult, int]] = deque()
        self.index = 0

    def time(self, number: int) -> float:
        """Seconds of a step with so many drafts."""
        if self.times is not None:
            return self.times(number)
        if not number:
            return self.seconds[StepKind.DECODE]
        return self.seconds[StepKind.SPECULATE] - (self.policy.most - number) * (self.each or 0.0)

    def run(self, steps: int, rows: int = 4, prediction: int | None = None) -> tuple[int, float, float]:
        """How many of them drafted, and seconds and tokens of all."""
        drafts, tokens, start = 0, 0.0, self.now
        for _ in range(steps):
            number = self.policy.drafts(rows, prediction)
            drafted = number > 0
            self.drawn[number] += 1
            self.numbers.append(number)
            plan = RecordingPlan(StepKind.SPECULATE if drafted else StepKind.DECODE, self.index, rows)
            self.policy.planned(plan)  # pyright: ignore[reportArgumentType]
            self.timed.append(self.index in self.policy._begun)
            seconds = self.time(number) + drafted * self.missed * min(self.plain_steps, 64)
            self.plain_steps = 0 if drafted else self.plain_steps + 1
            counts = np.array([self.tokens(number) for _ in range(rows)])
            result = StepResult(counts, counts, counts > 0, drafted=np.ones(rows) if drafted else None)
            self.begun.append((plan, result, round(seconds * (1 + self.noise * self.random.uniform(-1, 1)) * 1e9)))
            if len(self.begun) > self.late:
                self.collect()
            drafts, tokens, self.index = drafts + drafted, tokens + float(counts.mean()), self.index + 1
        return drafts, (self.now - start) * 1e-9, tokens

    def collect(self) -> None:
        """The oldest step ends, and is read."""
        plan, result, taken = self.begun.popleft()
        self.now += taken
        self.policy.collected(plan, result)  # pyright: ignore[reportArgumentType]

    def share(self) -> float:
        """Of drafts that come after kept ones, how many are kept now."""
        if self.phases:
            return 0.95 if self.index // self.phases % 4 == 0 else 0.06
        return share_kept(self.gain, self.policy.most)

    def tokens(self, drafts: int) -> int:
        """Of a row, each of whose drafts is as likely to be kept."""
        kept, share = 0, self.share()
        while kept < drafts and self.random.random() < share:
            kept += 1
        return 1 + kept

    def best(self) -> float:
        """Tokens of a row in a second by the best number of drafts, or by none."""
        share, numbers = self.share(), (0, *range(self.fewest, self.policy.most + 1))
        return max(sum(share**n for n in range(number + 1)) / self.time(number) for number in numbers)

    def rate(self, steps: int, rows: int = 16) -> float:
        """Tokens of a row in a second, by the best."""
        _, seconds, tokens = self.run(steps, rows)
        return tokens / seconds / self.best()


@cache
def share_kept(gain: float, most: int) -> float:
    """Of drafts that come after kept ones, so that a row with `most` gets `gain` tokens."""
    shares = np.linspace(0, 1, 2001)
    return float(shares[np.argmin(np.abs(sum(shares**n for n in range(most + 1)) - gain))])


class RecordingPlan:
    """What the policy reads of a plan."""

    def __init__(self, kind: StepKind, index: int, rows: int):
        self.kind, self.index, self.num_rows = kind, index, rows
        self.slots, self.epochs = np.arange(rows), np.zeros(rows, np.int32)


def test_drafts_that_pay_are_made_almost_always() -> None:
    drafts, seconds, tokens = Device(drafted=0.015, gain=2.5).run(2000)
    assert drafts > 1900
    assert tokens / seconds > 0.98 * 2.5 / 0.015


def test_drafts_that_do_not_pay_cost_little() -> None:
    drafts, seconds, tokens = Device(drafted=0.02, gain=1.1).run(4000)
    assert 0 < drafts < 120
    assert tokens / seconds > 0.98 / 0.01


def test_catching_up_is_no_reason_against_drafts() -> None:
    """What a first step takes more says nothing of those that follow."""
    device = Device(drafted=0.02, gain=1.5, missed=0.002)
    device.run(1000)
    device.gain = 2.5
    device.run(10000)
    assert device.run(200)[0] > 170


@pytest.mark.parametrize("missed", [0.0002, 0.001, 0.002])
def test_catching_up_costs_little_where_drafts_do_not_pay(missed: float) -> None:
    _, seconds, tokens = Device(drafted=0.02, gain=1.1, missed=missed).run(30000)
    assert tokens / seconds > 0.98 / 0.01


@pytest.mark.parametrize("short", [3e-4, 1e-5])
def test_two_results_that_are_read_at_once_are_soon_forgotten(short: float) -> None:
    """The second takes no time by the host's clock."""
    device = Device(drafted=0.02, gain=3.0)
    device.run(4)
    device.seconds[StepKind.DECODE] = short
    device.run(1)
    device.seconds[StepKind.DECODE] = 0.01
    device.run(1000)
    assert device.run(100)[0] > 90


def test_what_was_asked_for_a_plan_that_never_came_is_no_step() -> None:
    device = Device(drafted=0.016, gain=1.05)
    device.run(400)
    assert not device.policy.drafts(4)
    plan = RecordingPlan(StepKind.DECODE, device.index, 3)
    device.policy.planned(plan)  # pyright: ignore[reportArgumentType]
    assert plan.index not in device.policy._begun


@pytest.mark.few(15)
@pytest.mark.parametrize("most", [2, 4, 8])
@pytest.mark.parametrize("each", [0.0, 0.001, 0.004])
@pytest.mark.parametrize("gain", [1.02, 1.3, 1.6, 1.9, 2.8])
def test_as_many_drafts_are_made_as_pay_best(gain: float, each: float, most: int) -> None:
    """Where each takes time, by how many are kept."""
    device = Device(drafted=0.012 + most * each, gain=gain, each=each, most=most)
    device.run(400, rows=16)
    assert device.rate(3000) > 0.96


TIMES: dict[str, Callable[[int], float]] = {
    "even": lambda number: 0.01 if not number else 0.012 + 0.001 * number,
    "a host that takes longer": lambda number: max(0.01, 0.002 + 0.002 * number if number else 0.0),
    "a jump after one": lambda number: (0.01, 0.012, *[0.022 + 0.0005 * n for n in range(2, 9)])[number],
}


@pytest.mark.few(6)
@pytest.mark.parametrize("late", [0, 2])
@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("gain", [2.5, 6.3])
@pytest.mark.parametrize("times", TIMES)
def test_times_need_not_grow_evenly(times: str, gain: float, noise: float, late: int) -> None:
    device = Device(times=TIMES[times], gain=gain, most=8, noise=noise, late=late)
    device.run(1500, rows=16)
    assert device.rate(3000) > 0.95


@pytest.mark.parametrize("factor", [0.25, 0.5, 4.0])
def test_times_that_change_are_learned_anew(factor: float) -> None:
    """As contexts grow, or end."""
    device = Device(times=TIMES["even"], gain=2.5, most=8)
    device.run(1500, rows=16)
    device.times = lambda number: factor * TIMES["even"](number)
    device.run(200, rows=16)
    assert device.rate(2000) > 0.95


def test_one_draft_that_becomes_cheap_is_found_though_many_stay_dear() -> None:
    device = Device(times=lambda number: 0.01 * (1 + number), gain=2.0, most=8)
    device.run(2000, rows=16)
    device.times = lambda number: 0.01 if number < 2 else 0.01 * (1 + number)
    device.run(1500, rows=16)
    assert device.rate(1000) > 0.95


def test_every_kind_is_tried_again() -> None:
    device = Device(times=TIMES["even"], gain=2.5, most=8)
    device.run(1000, rows=16)
    device.drawn.clear()
    device.run(6000, rows=16)
    assert all(device.drawn[number] >= 4 for number in (0, 1, 8))


def test_three_bad_first_steps_are_not_believed_for_ever() -> None:
    for slow in (0, 1, 8):
        device = Device(times=TIMES["even"], gain=2.5, most=8)
        device.times = lambda number, slow=slow: TIMES["even"](number) * (30 if number == slow else 1)
        device.run(9, rows=16)
        device.times = TIMES["even"]
        device.run(2500, rows=16)
        assert device.rate(1000) > 0.95


def test_few_steps_are_timed_where_no_drafts_pay() -> None:
    """But some before every choice."""
    device = Device(drafted=0.02, gain=1.1)
    device.run(2000)
    device.timed.clear()
    device.run(6400)
    runs = [(timed, len(list(run))) for timed, run in groupby(device.timed)]
    assert sum(device.timed) < 0.15 * 6400
    assert max(steps for timed, steps in runs if not timed) <= 60
    assert min(steps for timed, steps in runs[1:-1] if timed) >= 4


def test_drafts_that_become_cheap_beside_steps_without_are_found() -> None:
    """As contexts grow."""
    device = Device(drafted=0.02, gain=1.5)
    device.run(2000)
    device.seconds = {StepKind.DECODE: 0.02, StepKind.SPECULATE: 0.022}
    device.run(400)
    assert device.run(100)[0] > 90


def test_drafts_do_not_seem_to_pay_where_all_steps_become_shorter() -> None:
    """Their times are of a later day than those of steps without."""
    device = Device(plain=0.02, drafted=0.028, gain=1.3, noise=0.05)
    device.run(3000)
    device.seconds = {StepKind.DECODE: 0.01, StepKind.SPECULATE: 0.014}
    assert device.run(3000)[0] < 0.05 * 3000


@pytest.mark.parametrize("slow", [0, 4])
def test_bad_first_steps_of_the_best_kind_are_not_believed_for_ever(slow: int) -> None:
    device = Device(drafted=0.015, gain=4.0 if slow else 1.0, most=4)
    device.times = lambda number: (0.015 if number else 0.01) * (30 if number == slow else 1)
    device.run(9, rows=16)
    device.times = None
    device.run(1500, rows=16)
    assert device.rate(500) > 0.95


def test_a_time_from_long_ago_is_soon_corrected() -> None:
    """Steps without drafts were slow, and are seldom tried."""
    device = Device(gain=1.5, most=4)
    device.times = lambda number: 0.016 if number else 0.019
    device.run(300, rows=64)
    device.times = lambda number: 0.016 if number else 0.01
    device.run(400, rows=64)
    device.drawn.clear()
    device.run(100, rows=64)
    assert device.drawn[0] > 80


def test_a_machine_that_pauses_once_changes_nothing() -> None:
    device = Device(drafted=0.015, gain=2.0, most=4)
    device.run(500, rows=16)
    device.times = lambda number: 1.5
    device.run(1, rows=16)
    device.times = None
    device.drawn.clear()
    device.run(200, rows=16)
    assert device.drawn[4] > 190


def test_tries_of_several_kinds_take_a_hundredth_together() -> None:
    device = Device(times=lambda number: 0.01 * (1 + number), gain=1.2, most=8)
    device.run(3000, rows=64)
    device.drawn.clear()
    assert device.rate(20000, rows=64) > 0.98
    assert device.drawn[8] > 0


def test_kinds_that_are_nearly_equal_do_not_take_turns() -> None:
    """Where rows must catch up in between."""
    device = Device(drafted=0.0206, gain=2.0, missed=0.002, noise=0.3, late=1, most=4)
    device.run(2000, rows=64)
    device.numbers.clear()
    assert device.rate(4000, rows=64) > 0.94
    switches = sum(one != other for one, other in zip(device.numbers, device.numbers[1:], strict=False))
    assert switches < 0.05 * 4000


@pytest.mark.parametrize("stages", [1, 4])
def test_a_try_takes_all_rows_of_a_pipeline_as_often(stages: int) -> None:
    device = Device(drafted=0.015, gain=3.0, most=4, stages=stages)
    device.run(4000, rows=16)
    runs = [len(list(run)) for number, run in groupby(device.numbers[1000:]) if not number]
    assert runs
    assert set(runs) == {4 * stages}


def test_a_pause_while_rows_catch_up_ends_no_tries() -> None:
    device = Device(drafted=0.02, gain=1.1, missed=0.0002)
    device.run(1000)
    device.missed = 0.1
    while not device.run(1)[0]:
        pass
    device.missed = 0.0002
    device.run(2000)
    device.gain = 4.0
    device.run(3000)
    assert device.run(100)[0] > 80


def test_steps_whose_rows_keep_drafts_together_are_counted_by_their_rows() -> None:
    """A step of which few rows come to a place says less of it than one of which all do."""
    device = Device(drafted=0.013, gain=1.0, most=4, phases=1, late=1)
    device.run(960, rows=16)
    device.drawn.clear()
    _, seconds, tokens = device.run(9600, rows=16)
    always = (0.25 * sum(0.95**n for n in range(5)) + 0.75 * sum(0.06**n for n in range(5))) / 0.013
    assert tokens / seconds > 0.93 * always


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("steps", "rows", "times", "bound"),
    [
        (100, 16, {"drafted": 0.012, "missed": 0.0005}, 0.84),
        (300, 1, {"drafted": 0.012, "missed": 0.0005, "late": 1}, 0.88),
        (300, 16, {"drafted": 0.02, "late": 1}, 0.89),
        (1000, 16, {"drafted": 0.02, "late": 1}, 0.93),
        (1000, 4, {"drafted": 0.02, "each": 0.0015, "missed": 0.0005, "late": 1}, 0.86),
    ],
)
def test_texts_that_change_are_followed(steps: int, rows: int, times: dict, bound: float) -> None:
    """Beside who knows at once which number is best. Every other text keeps almost all drafts."""
    device = Device(gain=1.0, most=4, noise=0.1, **times)
    device.share = lambda: 0.9 if device.index // steps % 2 else 0.1
    device.run(2 * steps, rows)
    seconds = ideal = 0.0
    for _ in range(16000 // steps):
        best = device.best()
        _, taken, tokens = device.run(steps, rows)
        seconds, ideal = seconds + taken, ideal + tokens / best
    assert ideal / seconds > bound


def test_fewer_drafts_are_made_when_fewer_are_kept_and_more_again() -> None:
    device = Device(drafted=0.018, gain=4.8, each=0.001, most=8)
    for gain, low, high in ((4.8, 6, 8), (1.9, 1, 3), (6.0, 6, 8), (1.0, 0, 0)):
        device.gain = gain
        device.run(2000, rows=16)
        device.drawn.clear()
        device.run(500, rows=16)
        assert sum(device.drawn[number] for number in range(low, high + 1)) > 420


def test_who_drafts_one_after_another_may_draft_less() -> None:
    """N-grams take as long for one draft as for all."""
    methods = {"ngram": 4, "draft_model": 1, "eagle3": 1}
    assert {method: Speculation(4, method=method).fewest for method in methods} == methods  # type: ignore[arg-type]


def test_drafting_begins_again_when_texts_change() -> None:
    device = Device(drafted=0.02, gain=1.0)
    device.run(1000)
    device.gain = 4.0
    device.run(1500)
    drafts, _, _ = device.run(100)
    assert drafts > 80


def test_each_number_of_rows_is_judged_by_itself() -> None:
    device = Device(drafted=0.011, gain=2.0)
    device.run(200, rows=1)
    device.seconds[StepKind.SPECULATE] = 0.05
    device.run(200, rows=64)
    assert device.run(50, rows=64)[0] < 10
    device.seconds[StepKind.SPECULATE] = 0.011
    assert device.run(50, rows=1)[0] > 40


def test_each_prediction_is_tried_whatever_other_texts_and_the_one_before_it_gained() -> None:
    device = Device(drafted=0.02, gain=1.0)
    device.run(1000)
    device.gain = 4.0
    assert device.run(60, prediction=1)[0] > 55
    device.gain = 1.0
    assert device.run(60, prediction=2)[0] < 30
    device.gain = 4.0
    assert device.run(60, prediction=3)[0] > 55
    device.gain = 1.0
    assert device.run(100)[0] < 5


def test_steps_that_it_was_not_asked_about_teach_it_nothing() -> None:
    """Those of rows under a grammar wait for masks."""
    device = Device(drafted=0.016, gain=1.05)
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
    device = Device(drafted=0.011, gain=1.0)
    for _ in range(10):
        assert device.policy.drafts(4)
        plan, ones = RecordingPlan(StepKind.SPECULATE, device.index, 4), np.ones(4, np.int32)
        device.policy.planned(plan)  # pyright: ignore[reportArgumentType]
        device.now, device.index = device.now + 10**7, device.index + 1
        result = StepResult(ones, ones, ones > 0, drafted=0 * ones)
        device.policy.collected(plan, result)  # pyright: ignore[reportArgumentType]
    device.gain = 3.0
    assert device.run(100)[0] > 80


class Texts(Device):
    """Rows whose drafts are kept while they repeat themselves, and not elsewhere: their tokens are told."""

    def __init__(self, drafted: float, most: int = 4):
        super().__init__(plain=0.01, drafted=drafted, gain=1.0, most=most)
        self.policy = DraftPolicy(lambda: self.now, most, most, repetition=Repetition(2 * most))
        self.said = 0

    def say(self, words: int, repeated: bool, rows: int = 1) -> tuple[int, int]:
        """Steps that these rows take for so many words of two tokens, and how many of them draft."""
        left, steps, drafting = 2 * words, 0, 0
        while left > 0:
            number = self.policy.drafts(rows)
            plan = RecordingPlan(StepKind.SPECULATE if number else StepKind.DECODE, self.index, rows)
            self.policy.planned(plan)  # pyright: ignore[reportArgumentType]
            count = 1 + (number if repeated else 0)
            tokens = [self.said + i if not repeated else (self.said + i) % 2 for i in range(count)]
            counts = np.full(rows, count)
            drafted = np.ones(rows) if number else None
            result = StepResult(np.tile(tokens, (rows, 1)), counts, counts > 0, drafted=drafted)
            self.now += round(self.time(number) * 1e9)
            self.policy.collected(plan, result)  # pyright: ignore[reportArgumentType]
            self.index, self.said, left = self.index + 1, self.said + count, left - count
            steps, drafting = steps + 1, drafting + (number > 0)
        return steps, drafting


@pytest.mark.parametrize("drafted", [0.015, 0.02, 0.03])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_list_of_equal_words_after_free_text_is_drafted(drafted: float, rows: int) -> None:
    """However dear drafts were to the text before it, and once more after another."""
    texts = Texts(drafted)
    for _ in range(2):
        texts.say(1500, repeated=False, rows=rows)
        steps, drafting = texts.say(200, repeated=True, rows=rows)
        assert drafting >= 70
        assert steps <= 130


def test_free_text_after_a_list_is_soon_left_alone() -> None:
    texts = Texts(0.02)
    texts.say(500, repeated=False)
    texts.say(200, repeated=True)
    steps, drafting = texts.say(500, repeated=False)
    assert drafting <= 0.15 * steps


def test_texts_of_others_are_not_looked_up() -> None:
    """A row's place that another sequence takes begins anew; without n-grams nothing is followed."""
    found = Repetition(4)
    for epoch in range(8):
        plan = RecordingPlan(StepKind.DECODE, epoch, 1)
        plan.epochs[:] = epoch
        found.note(plan, StepResult(np.array([[7, 7]]), np.array([2]), np.array([True])))  # pyright: ignore
    assert not found.is_found()
    off, plan = Repetition(0), RecordingPlan(StepKind.DECODE, 0, 1)
    off.note(plan, StepResult(np.array([[7] * 50]), np.array([50]), np.array([True])))  # pyright: ignore
    assert not off.is_found()


def test_who_is_taken_to_repeat_himself_in_vain_is_taken_so_ever_later() -> None:
    """Drafts were tried and did not pay, or nobody would ask again so soon."""
    repetition, taken = Repetition(4), list[int]()
    for step in range(20_000):
        plan = RecordingPlan(StepKind.DECODE, 0, 1)
        repetition.note(plan, StepResult(np.array([[7]]), np.array([1]), np.array([True])))  # pyright: ignore
        if repetition.is_found():
            taken.append(step)
    between = [after - before for before, after in itertools.pairwise(taken)]
    assert between[:4] == [4, 8, 16, 32]
    assert between[-1] == 2048


def test_results_that_are_read_at_once_take_no_time_and_are_not_compared() -> None:
    size = _Size(fewest=1, most=4, stages=1)
    for _ in range(40):
        size.gains.add(4, np.array([1]))  # no draft is kept
    for number, seconds in ((0, 1.0), (1, 1.1), (4, 1.2)):
        for _ in range(40):
            size.times[number].add(seconds)
    size._is_judged, size._best = True, 4
    for _ in range(40):
        size.times[4].add(0.0)
    assert size.drafts() == 0
    size.resumed(4, 1.0)
