"""DraftPolicy against a statement of its rule, step by step, with a clock that only steps advance."""

import math
import random
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import pytest

from jaxinfer.engine.scheduler.draft_policy import DraftPolicy
from jaxinfer.engine.step.plan import StepKind, StepResult

TOKENS = 3


class Plan(NamedTuple):
    """What the policy reads of a plan."""

    kind: StepKind
    index: int
    num_rows: int


class Ended(NamedTuple):
    """A step that was collected. end: when, in seconds."""

    index: int
    drafts: bool
    end: float
    seconds: float
    tokens: int


class Device:
    """Steps that take set times, and their results, read as many steps `late`.

    plain, drafting: seconds of a step and tokens of all its rows. catching_up: seconds more of a step that drafts after
    one that did not.
    """

    def __init__(
        self,
        *,
        plain: tuple[float, int] = (0.01, 4),
        drafting: tuple[float, int] = (0.01, 4),
        catching_up: float = 0.0,
        late: int = 0,
        stages: int = 1,
    ):
        self.plain, self.drafting, self.catching_up, self.late = plain, drafting, catching_up, late
        self.now, self.index, self.drafted = 0, 0, False
        self.policy = DraftPolicy(lambda: self.now, TOKENS, stages)
        self.begun: deque[tuple[Plan, StepResult, int]] = deque()
        self.ended: list[Ended] = []

    def run(self, steps: int, rows: int = 4, prediction: int | None = None, constrained: bool = False) -> str:
        """Return a letter for each step: D if it drafts, p if it is plain."""
        return "".join(self.step(rows, prediction, constrained) for _ in range(steps))

    def step(self, rows: int = 4, prediction: int | None = None, constrained: bool = False) -> str:
        number = self.policy.drafts(rows, prediction, constrained)
        assert number in (0, TOKENS)
        drafts = number > 0
        seconds, tokens = self.drafting if drafts else self.plain
        seconds += self.catching_up * (drafts and not self.drafted)
        self.drafted = drafts
        self.dispatch(StepKind.SPECULATE if drafts else StepKind.DECODE, rows, seconds, tokens)
        return "D" if drafts else "p"

    def dispatch(self, kind: StepKind, rows: int, seconds: float, tokens: int) -> None:
        plan: Any = Plan(kind, self.index, rows)
        self.policy.planned(plan)
        counts = np.array([tokens, 0])
        self.begun.append((plan, StepResult(counts, counts, counts > 0), round(seconds * 1e9)))
        self.index += 1
        while len(self.begun) > self.late:
            self.collect()

    def collect(self) -> None:
        plan, result, nanoseconds = self.begun.popleft()
        self.now += nanoseconds
        seconds, tokens = nanoseconds * 1e-9, int(result.counts.sum())
        self.ended.append(Ended(plan.index, plan.kind is StepKind.SPECULATE, self.now * 1e-9, seconds, tokens))
        self.policy.collected(plan, result)  # pyright: ignore[reportArgumentType]


FIRST = "D" * 40 + "pp" + "D" * 8
"""The steps before the first decision."""
ON, OFF = "D" * 190 + "pp" + "D" * 8, "p" * 190 + "DD" + "p" * 8
"""The steps between two decisions."""
SLOW, FAST = (0.02, 4), (0.015, 12)
"""Steps with drafts: of the same tokens as plain ones in twice the time, and of three times as many in half more."""


def test_drafts_that_pay_are_left_out_of_a_hundredth_of_the_steps() -> None:
    assert Device(drafting=FAST).run(1050) == FIRST + 5 * ON


def test_drafts_that_do_not_pay_are_tried_in_a_hundredth_of_the_steps() -> None:
    """The first plain steps tell so."""
    assert Device(drafting=SLOW).run(1050) == FIRST + 5 * OFF


def is_on(steps: list[Ended], now: float) -> bool:
    """The rule: tokens have not taken longer with drafts than without, where a step counts less by e each minute."""

    def cost(drafts: bool) -> float | None:
        found = [(math.exp((one.end - now) / 60), one) for one in steps if one.drafts == drafts]
        tokens = sum(weight * one.tokens for weight, one in found)
        return sum(weight * one.seconds for weight, one in found) / tokens if tokens else None

    drafting, plain = cost(True), cost(False)
    return drafting is None or plain is None or drafting <= plain


def place(index: int) -> int:
    """The steps since the last decision, of which the first comes after 50 steps."""
    return (index - 50) % 200


@pytest.mark.parametrize("late", [0, 2])
@pytest.mark.parametrize("seed", range(3))
def test_each_step_follows_the_rule(seed: int, late: int) -> None:
    """Times and tokens change from step to step, and with each text whether drafts pay; sometimes nothing runs.

    Where results are read late, as many steps are under way when a decision is made.
    """
    draw, device = random.Random(seed), Device(late=late)
    on, decisions, gain = True, set[bool](), 2.0
    for number in range(6_000):
        if number % 1000 == 0:
            gain = 2.5 - gain
        if draw.random() < 0.02:
            while device.begun:
                device.collect()
            device.now += 10**9
        device.plain = draw.uniform(0.02, 0.06), draw.randint(3, 5)
        device.drafting = draw.uniform(0.02, 0.06), round(gain * draw.randint(3, 5))
        if place(number) == 0:
            counted = [one for one in device.ended if place(one.index) not in (0, 150, 190, 192)]
            on = is_on(counted, device.now * 1e-9)
            decisions.add(on)
        assert device.step() == ("D" if on != (place(number) in (190, 191)) else "p")
    assert decisions == {True, False}


def test_what_was_measured_fades_within_minutes() -> None:
    """Texts that have not gained by drafts for a minute become such that do: each try tells so."""
    device = Device(drafting=SLOW)
    assert device.run(6050) == FIRST + 30 * OFF
    changed, device.drafting = device.now, FAST
    while device.run(200) == OFF:
        pass
    assert 10e9 < device.now - changed < 120e9
    assert device.run(2000) == 10 * ON
    device.drafting = SLOW
    changed = device.now
    while device.run(200) == ON:
        pass
    assert device.now - changed < 60e9
    assert device.run(2000) == 10 * OFF


def test_the_first_steps_after_others_do_not_count() -> None:
    """A draft model catches up in them, and programs may be compiled."""
    device = Device(drafting=FAST, catching_up=100.0)
    assert device.run(1050) == FIRST + 5 * ON
    device = Device(drafting=SLOW, catching_up=100.0)
    device.run(250)
    device.drafting = FAST
    device.run(20_000)
    assert device.run(200) == ON


@pytest.mark.parametrize("stages", [1, 3])
def test_a_try_takes_all_rows_of_a_pipeline(stages: int) -> None:
    device = Device(drafting=SLOW, stages=stages, late=stages - 1)
    steps = device.run(450 * stages)
    assert steps == "".join(stages * one for one in FIRST + 2 * OFF)


def test_a_pipeline_decides_as_often_for_each_row() -> None:
    device = Device(drafting=FAST, stages=3, late=2)
    device.run(150)
    device.drafting = 1.0, 4
    assert device.run(600) == "".join(3 * one for one in ON)
    assert device.run(600) == "".join(3 * one for one in OFF)


def test_numbers_of_rows_and_masks_are_judged_separately() -> None:
    device = Device(drafting=SLOW)
    device.run(50, rows=4)
    assert device.run(200, rows=7) == OFF
    device.drafting = FAST
    assert device.run(250, rows=8) == FIRST + ON
    assert device.run(250, rows=3) == FIRST + ON
    assert device.run(250, rows=4, constrained=True) == FIRST + ON
    assert device.run(200, rows=5) == OFF


def test_each_prediction_is_drafted_from_whatever_other_texts_gained() -> None:
    device = Device(drafting=SLOW)
    assert device.run(250) == FIRST + OFF
    device.drafting = FAST
    assert device.run(250, prediction=1) == FIRST + ON
    device.drafting = SLOW
    assert device.run(250, prediction=2) == FIRST + OFF
    device.drafting = FAST
    assert device.run(50, prediction=3) == FIRST
    assert device.run(50, rows=1, prediction=3) == FIRST
    device.drafting = SLOW
    assert device.run(200) == OFF


def test_steps_that_are_not_as_asked_for_are_none() -> None:
    """Neither those of other rows or another kind, nor those that it was not asked about: they wait for masks."""
    device = Device(drafting=FAST)
    steps = device.run(41)
    for _ in range(100):
        device.dispatch(StepKind.DECODE, 4, 1e-5, 4)
        assert device.policy.drafts(4) == 0
        device.dispatch(StepKind.DECODE, 3, 1e-5, 4)
        assert device.policy.drafts(4) == 0
        device.dispatch(StepKind.MIXED, 4, 1e-5, 4)
    assert steps + device.run(209) == FIRST + ON


def test_steps_that_failed_are_none() -> None:
    device = Device(drafting=FAST)
    steps = device.run(20)
    device.late = 2
    steps += device.run(2)
    device.begun.clear()
    device.now += 10**10
    device.late = 0
    assert steps + device.run(228) == FIRST + ON
    device = Device(drafting=SLOW)
    steps = device.run(40)
    device.late = 2
    steps += device.run(2)  # of which the one that counts is never collected
    device.begun.clear()
    device.late = 0
    assert steps + device.run(408) == FIRST + ON + OFF


def test_tokens_count_and_not_rows() -> None:
    """Rows that had ended bring none."""
    assert Device(plain=(0.01, 2), drafting=(0.01, 1)).run(250) == FIRST + OFF
    assert Device(plain=(0.01, 0), drafting=(0.01, 0)).run(250) == FIRST + ON


def test_with_a_clock_that_stands_still_drafting_stays_on() -> None:
    assert Device(plain=(0.0, 4), drafting=(0.0, 4)).run(250) == FIRST + ON
