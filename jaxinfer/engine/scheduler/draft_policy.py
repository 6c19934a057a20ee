"""DraftPolicy: how many drafts pay in the next step, from what steps with and without them have taken and given."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from operator import mul
from statistics import median

import numpy as np

from jaxinfer.engine.scheduler.repetition import Repetition
from jaxinfer.engine.step.plan import StepKind, StepPlan, StepResult

_TRIES = 3
"""Steps of a kind before it is judged: the first meet cold caches."""
_SHARE = 0.01
"""Share of the time spent on trying what is slower: texts change."""
_TRY = 4
"""Steps of a later try, of which the first tells nothing of the others: a draft model catches up in it."""
_PAUSE = 8
"""Steps between two tries, at least; and for which a choice of no drafts holds, at least."""
_LONGEST = 64
"""Steps for which it holds, at most."""
_WITHOUT = 24
"""First steps that find nothing to draft and are no tries: a text begins before it repeats anything."""
_WEIGHT = 0.1
"""Weight of a new measurement in a mean."""
_MANY = 8
"""Rows: what fewer of them keep says less."""
_HELD = 100
"""Steps in which it must pay to leave drafts out, catching up included: else kinds that are nearly equal take turns."""
_STALE = 50
"""Steps of others after which a time says little: the next ones weigh more."""
_SURE, _SOON = 10, 32
"""Steps of a kind before its time is sure, and steps of others until it is tried again before: the first may all have
met cold caches, or a machine that was busy."""


class _Time:
    """Seconds of a step with a number of drafts, of so many steps."""

    def __init__(self) -> None:
        self.steps = self._again = 0
        self.seconds = 0.0
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=_TRIES)

    @property
    def is_judged(self) -> bool:
        return self.steps >= _TRIES and self.seconds > 0

    def add(self, seconds: float) -> None:
        self.steps += 1
        self._last.append(seconds)
        if self.steps <= _SURE:
            self._first.append(seconds)
            self.seconds = median(self._first)  # some may meet cold caches, and two be read at once
        else:  # a machine that pauses says nothing of its steps
            self._again += 1
            weight = max(_WEIGHT, 1 / (2 + self._again))
            self.seconds += weight * (min(seconds, 2 * self.seconds) - self.seconds)
            self.seconds = min(self.seconds, 2 * max(self._last))  # what was measured first may be far too much

    def expire(self) -> None:
        """From here on what comes says more than what it has."""
        self._again = 0


class _Times(dict[int, _Time]):
    """Times of steps of so many rows, by the number of drafts."""

    def __init__(self, numbers: Iterable[int]):
        super().__init__((number, _Time()) for number in numbers)
        self._planned, self._last = 0, dict.fromkeys(self, 0)

    def since(self, number: int) -> int:
        """Steps since the last one that was timed with this number."""
        return self._planned - self._last[number]

    def planned(self, number: int) -> None:
        """Notes that a step with so many is planned, and timed."""
        if self.since(number) >= _STALE:
            self[number].expire()
        self._planned += 1
        self._last[number] = self._planned

    def planned_untimed(self) -> None:
        self._planned += 1


class _Gains:
    """Tokens that a row gets, by how many drafts it may have: for each place among them the share of rows that kept all
    drafts before it, and of those that kept the one there too."""

    def __init__(self, most: int):
        self._seen, self._reached, self._kept = [0] * most, [0.0] * most, [0.0] * most

    @property
    def is_judged(self) -> bool:
        """True once the last place has been measured, which only steps with the most drafts reach."""
        return self._seen[-1] >= _TRIES

    def gains(self) -> list[float]:
        """Return the expected tokens a step by the number of drafts, from 0 on."""
        shares = (kept / max(reached, 1e-9) for kept, reached in zip(self._kept, self._reached, strict=True))
        return list(accumulate(accumulate(shares, mul), initial=1.0))

    def add(self, drafts: int, counts: np.ndarray) -> None:
        """counts: int [n], tokens that rows with so many drafts have got, at least one each."""
        exactly = np.bincount(counts - 1, minlength=drafts + 1)[: drafts + 1]
        at_least = (exactly[::-1].cumsum()[::-1] / len(counts)).tolist()
        for place in range(drafts):
            self._seen[place] += 1
            weight = max(_WEIGHT * min(1.0, (1 + len(counts)) / _MANY), 1 / self._seen[place])
            self._reached[place] += weight * (at_least[place] - self._reached[place])
            self._kept[place] += weight * (at_least[place + 1] - self._kept[place])


class _Size:
    """Steps of so many rows, with drafts, `fewest` to `most` a row, and without. stages: steps that take all rows once.
    times: by the number of drafts, which other texts may have in common with these.

    without: first steps that found nothing to draft.
    """

    def __init__(self, fewest: int, most: int, stages: int, times: _Times | None = None):
        self.times = times or _Times((0, *range(fewest, most + 1)))
        self.gains = _Gains(most)
        self.without = 0
        self._first = tuple(dict.fromkeys((most, fewest, 0)))
        self._is_judged = False
        self._best = self._holds = self._since = 0
        self._stages, self._resuming = stages, 0
        self._resumed: deque[float] = deque([0.0], _TRIES)
        self._tried, self._tries_left = 0, 0
        self._begins_try = False

    def drafts(self) -> int:
        """Return how many drafts of a row the next step should have."""
        self._begins_try = False
        if not self.gains.is_judged:
            return self._first[0]
        if not self._is_judged:
            for number in self._first:
                if not self.times[number].is_judged:
                    return number
            self._is_judged = True
        if self._tries_left:
            return self._tried
        return self._best if self._holds else self._chosen()

    def _chosen(self) -> int:
        """The best number, or one that is to be tried again."""
        gains, seconds = self.gains.gains(), self._seconds()
        best = self._best = self._held(max(seconds, key=lambda number: gains[number] / seconds[number]), gains, seconds)
        self._holds = 0 if best else _PAUSE
        if self._since + 1 < _PAUSE:
            return best
        until_try = float(_LONGEST)
        # Times need not grow evenly with drafts: beside what was measured first, the neighbours of the best are tried.
        others = {number for number in (*self._first, best - 1, best + 1) if number in seconds and number != best}
        for number in sorted(others, key=self.times.since, reverse=True):
            lost = seconds[number] - gains[number] * seconds[best] / gains[best]
            left = self._steps_left(number, lost, 0 in (number, best), seconds[best] / len(others))
            if left <= 0:
                self._begins_try = True
                return number
            until_try = min(until_try, left)
        if not best:
            self._holds = max(int(until_try), _PAUSE)
        return best

    def _held(self, best: int, gains: Sequence[float], seconds: Mapping[int, float]) -> int:
        """The best number, or the one before where leaving drafts out would save less than beginning again takes."""
        if best or not self._best or self._best not in seconds:
            return best
        saved = seconds[self._best] - gains[self._best] * seconds[0]
        return 0 if _HELD * saved > min(self._resumed) else self._best

    def try_anew(self) -> None:
        """Forgets what rows gained: what they say now is of another kind."""
        self.gains = _Gains(self._first[0])
        self._holds = self._tries_left = 0

    def goes_on_untimed(self) -> bool:
        """Notes that the next step has no drafts, if that need not be timed: of the steps for which a choice holds the
        last ones are, as many as of a try. Returns whether it is noted."""
        if self._holds <= _TRY:
            return False
        self._holds -= 1
        self._since += 1
        self.times.planned_untimed()
        return True

    def goes_on(self, drafts: int) -> bool:
        """Notes that the next step has so many drafts, as was said. Returns whether its rows are the first to draft
        after others."""
        resumes = drafts > 0 and self._resuming > 0
        if not drafts:
            self._resuming = self._stages
        elif resumes:
            if self._resuming == self._stages:
                self._resumed.append(0.0)
            self._resuming -= 1
        if self._begins_try:
            self._tried, self._tries_left = drafts, _TRY * self._stages - 1
            self._since = self._holds = 0
        elif self._tries_left:
            self._tries_left -= 1
        elif self._is_judged:
            self._since += 1
            self._holds = max(self._holds - 1, 0)
        self.times.planned(drafts)
        return resumes

    def resumed(self, drafts: int, seconds: float) -> None:
        """Notes the time of a step whose rows were the first to draft after others."""
        if self._is_judged:
            self._resumed[-1] += max(seconds - self._seconds().get(drafts, seconds), 0.0)

    def _seconds(self) -> dict[int, float]:
        """Return the seconds of a step by its number of drafts; numbers that were not measured are interpolated between
        the nearest that were. The largest numbers may be missing: results that are read at once make a time 0, which
        says nothing."""
        found, unknown, before = {}, [], 0
        for number, time in self.times.items():
            if not time.is_judged:
                unknown.append(number)
                continue
            found[number] = time.seconds
            for one in unknown:
                share = (one - before) / (number - before)
                found[one] = found[before] + share * (time.seconds - found[before])
            unknown, before = [], number
        return found

    def _steps_left(self, number: int, lost: float, resumes: bool, share: float) -> float:
        """Until what is slower is to be tried again, none or fewer where it is now: what that takes is spread over the
        steps since it was. lost: seconds of each of its steps. share: seconds of a step, of which it may take
        `_SHARE`."""
        price = _TRY * self._stages * lost + (min(self._resumed) if resumes else 0.0)
        left = price / (_SHARE * share) - 1
        if self.times[number].steps < _SURE:
            left = min(left, _SOON)
        return left - self.times.since(number)


class DraftPolicy:
    """Decides for each step whose rows all decode.

    clock: nanoseconds; with one that stands still every step drafts. Steps are alike whose rows lie between the same
    powers of two, and that have rows under masks, or none. A step's time is that from the result before it, or from its
    own plan, to its own result. fewest, most: drafts of a row in a step that drafts. stages: of a pipeline, whose steps
    take a share of the rows each.

    Where a row has a prediction, what other texts gained by drafts says nothing: steps with such rows are judged by
    themselves, and anew with each prediction. Where texts begin to repeat themselves while nothing is drafted, what
    they gained before says nothing, either: a row's gains change by little in a step, and tries are rare where drafts
    cost much, so that a list would have ended before it was noticed. repetition: tells so.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        fewest: int,
        most: int,
        stages: int = 1,
        repetition: Repetition | None = None,
    ):
        self.most = most
        self._repetition = repetition or Repetition(0)
        self._clock = clock
        self._sizes_of = (fewest, most, stages)
        self._sizes: dict[tuple[int, bool], _Size] = {}
        self._predicted_sizes: dict[tuple[int, bool], _Size] = {}
        self._prediction: int | None = None
        self._begun: dict[int, tuple[int, _Size, int, bool]] = {}
        self._last = 0
        self._asked: tuple[_Size, int, int] | None = None

    def drafts(self, rows: int, prediction: int | None = None, constrained: bool = False) -> int:
        """Return how many drafts a row may have in the step that is planned now, of so many rows; 0: it should not
        draft. prediction: a number of the newest prediction; None if no row has any. constrained: True if some rows
        draw under masks."""
        if prediction != self._prediction:
            self._prediction = prediction
            self._predicted_sizes.clear()
        size = self._size(rows, constrained)
        drafts = size.drafts()
        if not drafts and self._repetition.is_found():
            size.try_anew()
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
        if not drafts and size.goes_on_untimed():
            return
        self._begun[plan.index] = self._clock(), size, drafts, size.goes_on(drafts)

    def collected(self, plan: StepPlan, result: StepResult) -> None:
        """Notes a step's result. Steps before it that were not collected are forgotten."""
        self._repetition.note(plan, result)
        now, before = self._clock(), self._last
        self._last = now
        noted = self._begun.pop(plan.index, None)
        while self._begun and (first := next(iter(self._begun))) < plan.index:
            del self._begun[first]
        if noted is None or not plan.num_rows:
            return
        begun, size, drafts, resumes = noted
        seconds = (now - max(begun, before)) * 1e-9
        if resumes:
            size.resumed(drafts, seconds)
            return
        nothing = result.drafted is not None and not result.drafted.any()
        if nothing and not size.gains.is_judged and size.without < _WITHOUT:
            size.without += 1
            return
        if not drafts:
            size.times[0].add(seconds)
            return
        gained = result.counts[result.counts > 0]
        if len(gained):  # others had ended before, unknown to who planned it, as they would have without drafts
            size.times[drafts].add(seconds)
            size.gains.add(drafts, gained)

    def _size(self, rows: int, constrained: bool) -> _Size:
        alike = (rows.bit_length(), constrained)
        size = self._sizes.get(alike)
        if size is None:
            size = self._sizes[alike] = _Size(*self._sizes_of)
        if self._prediction is None:
            return size
        predicted = self._predicted_sizes.get(alike)
        if predicted is None:
            predicted = self._predicted_sizes[alike] = _Size(*self._sizes_of, size.times)
        return predicted
