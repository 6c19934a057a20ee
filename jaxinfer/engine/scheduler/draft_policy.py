"""DraftPolicy: how many drafts pay in the next step, from what steps with and without them have taken and given."""

from collections.abc import Callable
from itertools import accumulate
from operator import mul
from statistics import median

import numpy as np

from jaxinfer.engine.step.plan import StepKind, StepPlan, StepResult

_TRIES = 3
"""Steps of a kind before it is judged: the first meet cold caches."""
_SHARE = 0.01
"""Of the time, for trying what is slower: texts change."""
_TRY = 4
"""Steps of a later try, of which the first tells nothing of the others: a draft model catches up in it."""
_PAUSE = 8
"""Steps between two tries, at least."""
_WITHOUT = 24
"""First steps that find nothing to draft and are no tries: a text begins before it repeats anything."""
_WEIGHT = 0.1
"""Of a new measurement in a mean."""


class _Time:
    """Seconds of a step with a number of drafts, of so many steps."""

    def __init__(self) -> None:
        self.steps = 0
        self.seconds = 0.0
        self._first: list[float] = []

    @property
    def is_judged(self) -> bool:
        return self.steps >= _TRIES and self.seconds > 0

    def add(self, seconds: float) -> None:
        self.steps += 1
        if self.steps <= _TRIES:
            self._first.append(seconds)
            self.seconds = median(self._first)  # one may meet cold caches, and two be read at once
        else:
            self.seconds += _moved(self.seconds, seconds)


class _Times:
    """Seconds of steps by how many drafts a row may have, at least `fewest`: they grow by as much with each draft, and
    are measured at both ends."""

    def __init__(self, fewest: int, most: int):
        self._fewest, self._most = fewest, most
        self.ends = {number: _Time() for number in (most, fewest)}

    def seconds(self, drafts: int) -> float:
        first, last = self.ends[self._fewest].seconds, self.ends[self._most].seconds
        return first + self._place(drafts) * (last - first)

    def add(self, drafts: int, seconds: float) -> None:
        if drafts in self.ends:
            self.ends[drafts].add(seconds)
            return
        moved, place = _moved(self.seconds(drafts), seconds), self._place(drafts)
        scale = moved / (place**2 + (1 - place) ** 2)
        for number, share in ((self._fewest, 1 - place), (self._most, place)):
            self.ends[number].seconds = max(self.ends[number].seconds + scale * share, 1e-9)

    def _place(self, drafts: int) -> float:
        """Between the ends, 0 to 1."""
        return (drafts - self._fewest) / max(self._most - self._fewest, 1)


class _Gains:
    """Tokens that a row gets, by how many drafts it may have: for each place among them, how often the draft there was
    kept where those before it were."""

    def __init__(self, most: int):
        self._shares, self._seen = [0.0] * most, [0] * most

    def gain(self, drafts: int) -> float:
        return 1 + sum(accumulate(self._shares[:drafts], mul))

    def add(self, drafts: int, counts: np.ndarray) -> None:
        """counts: int [n], tokens that rows with so many drafts have got, at least one each."""
        exactly = np.bincount(counts - 1, minlength=drafts + 1)[: drafts + 1]
        at_least = exactly[::-1].cumsum()[::-1].tolist()
        for place in range(drafts):
            if at_least[place]:
                self._seen[place] += 1
                share = at_least[place + 1] / at_least[place]
                self._shares[place] += max(_WEIGHT, 1 / self._seen[place]) * (share - self._shares[place])


class _Size:
    """Steps of so many rows, with drafts, `fewest` to `most` a row, and without. plain: seconds of those without, as
    far as they are known.

    stages: steps that take all rows once. without: first steps that found nothing to draft.
    """

    def __init__(self, fewest: int, most: int, stages: int, plain: _Time | None = None):
        self.plain = plain or _Time()
        self.times, self.gains = _Times(fewest, most), _Gains(most)
        self.without = 0
        self._choices = range(fewest, most + 1)
        self._ends = (*self.times.ends, 0)
        self._since = self._turn = 0
        self._resume_seconds = 0.0
        self._stages, self._resuming = stages, 0
        self._tried, self._tries_left = 0, 0
        self._begins_try = False

    def drafts(self) -> int:
        """How many drafts of a row the next step had better have."""
        self._begins_try = False
        for number, time in self.times.ends.items():
            if not time.is_judged:
                return number
        if not self.plain.is_judged:
            return 0
        if self._tries_left:
            return self._tried
        best = max((0, *self._choices), key=self._rate)
        others = [number for number in self._ends if number != best]
        other = others[self._turn % len(others)]
        self._begins_try = self._is_due(best, other)
        return other if self._begins_try else best

    def goes_on(self, drafts: int) -> bool:
        """Notes that the next step has so many drafts, as was said. Returns whether its rows are the first to draft
        after others."""
        resumes = drafts > 0 and self._resuming > 0
        if not drafts:
            self._resuming = self._stages
        elif resumes:
            if self._resuming == self._stages:
                self._resume_seconds = 0.0
            self._resuming -= 1
        if self._begins_try:
            self._tried, self._tries_left, self._since = drafts, _TRY * self._stages - 1, 0
            self._turn += 1
        elif self._tries_left:
            self._tries_left -= 1
        elif self.plain.is_judged:
            self._since += 1
        return resumes

    def resumed(self, drafts: int, seconds: float) -> None:
        """Notes the time of a step whose rows were the first to draft after others."""
        self._resume_seconds += max(seconds - self.times.seconds(drafts), 0.0)

    def add(self, drafts: int, seconds: float, counts: np.ndarray) -> None:
        """Notes the time of another step, and the tokens that each of its rows has got, int [n]."""
        if drafts:
            self.times.add(drafts, seconds)
            self.gains.add(drafts, counts)
        else:
            self.plain.add(seconds)

    def _rate(self, drafts: int) -> float:
        """Tokens of a row in a second."""
        return self.gains.gain(drafts) / self._seconds(drafts)

    def _seconds(self, drafts: int) -> float:
        return self.times.seconds(drafts) if drafts else self.plain.seconds

    def _is_due(self, best: int, other: int) -> bool:
        """Whether what is slower is to be tried: what that takes is spread over the steps since something was."""
        lost = self._seconds(other) - self.gains.gain(other) / self._rate(best)
        lost = _TRY * self._stages * lost + self._resume_seconds
        return self._since + 1 >= max(_PAUSE, lost / (_SHARE * self._seconds(best)))


class DraftPolicy:
    """Decides for each step whose rows all decode.

    clock: nanoseconds; with one that stands still every step drafts. Steps are alike whose rows lie between the same
    powers of two, and that have rows under masks, or none. A step's time is that from the result before it, or from its
    own plan, to its own result. fewest, most: drafts of a row in a step that drafts. stages: of a pipeline, whose steps
    take a share of the rows each.

    Where a row has a prediction, what other texts gained by drafts says nothing: steps with such rows are judged by
    themselves, and anew with each prediction.
    """

    def __init__(self, clock: Callable[[], int], fewest: int, most: int, stages: int = 1):
        self.most = most
        self._clock = clock
        self._sizes_of = (fewest, most, stages)
        self._sizes: dict[tuple[int, bool], _Size] = {}
        self._predicted_sizes: dict[tuple[int, bool], _Size] = {}
        self._prediction: int | None = None
        self._begun: dict[int, tuple[int, _Size, int, bool]] = {}
        self._last = 0
        self._asked: tuple[_Size, int, int] | None = None

    def drafts(self, rows: int, prediction: int | None = None, constrained: bool = False) -> int:
        """How many drafts a row may have in the step that is planned now, of so many rows; 0: it had better not draft.
        prediction: a number of the prediction that came last; None where no row has any. constrained: whether some rows
        draw under masks."""
        if prediction != self._prediction:
            self._prediction = prediction
            self._predicted_sizes.clear()
        size = self._size(rows, constrained)
        drafts = size.drafts()
        self._asked = size, drafts, rows
        return drafts

    def planned(self, plan: StepPlan) -> None:
        """Notes a step that is dispatched now. Of those that it was not asked about, or that are not what it said, it
        learns nothing: they may wait for masks or blocks."""
        asked, self._asked = self._asked, None
        if asked is None:
            return
        size, drafts, rows = asked
        if plan.kind is not (StepKind.SPECULATE if drafts else StepKind.DECODE) or plan.num_rows != rows:
            return
        self._begun[plan.index] = self._clock(), size, drafts, size.goes_on(drafts)

    def collected(self, plan: StepPlan, result: StepResult) -> None:
        """Notes a step's result. Steps before it that were not collected are forgotten."""
        now, before = self._clock(), self._last
        self._last = now
        noted = self._begun.pop(plan.index, None)
        for index in [index for index in self._begun if index < plan.index]:
            del self._begun[index]
        if noted is None or not plan.num_rows:
            return
        begun, size, drafts, resumes = noted
        seconds = (now - max(begun, before)) * 1e-9
        if resumes:
            size.resumed(drafts, seconds)
            return
        nothing = result.drafted is not None and not result.drafted.any()
        if nothing and not size.times.ends[self.most].is_judged and size.without < _WITHOUT:
            size.without += 1
            return
        gained = result.counts[result.counts > 0]
        if len(gained):  # others had ended before, unknown to who planned it, as they would have without drafts
            size.add(drafts, seconds, gained)

    def _size(self, rows: int, constrained: bool) -> _Size:
        alike = (rows.bit_length(), constrained)
        size = self._sizes.get(alike)
        if size is None:
            size = self._sizes[alike] = _Size(*self._sizes_of)
        if self._prediction is None:
            return size
        predicted = self._predicted_sizes.get(alike)
        if predicted is None:
            predicted = self._predicted_sizes[alike] = _Size(*self._sizes_of, size.plain)
        return predicted


def _moved(mean: float, seconds: float) -> float:
    """How far a mean moves with another measurement: a machine that pauses says nothing of its steps."""
    return _WEIGHT * (min(seconds, 2 * mean) - mean)
