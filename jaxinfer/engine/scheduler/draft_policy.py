"""DraftPolicy: whether drafts pay in the next step, from what steps with and without them have taken and given."""

from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass
class _Measured:
    """Steps of one kind: how many, seconds of one, tokens that a row got."""

    steps: int = 0
    seconds: float = 0.0
    gain: float = 1.0
    _first: list[float] = field(default_factory=list)

    def add(self, seconds: float, gain: float) -> None:
        self.steps += 1
        if self.steps <= _TRIES:
            self._first.append(seconds)
            self.seconds = median(self._first)  # one may meet cold caches, and two be read at once
        else:
            self.seconds = self._mean(self.seconds, seconds)
        self.gain += max(_WEIGHT, 1 / self.steps) * (gain - self.gain)

    def _mean(self, old: float, new: float) -> float:
        return old + _WEIGHT * (min(new, 2 * old) - old)  # a machine that pauses says nothing of its steps


class _Size:
    """Steps of so many rows, with drafts and without. plain: what is known of steps without drafts.

    stages: steps that take all rows once. without: first steps that found nothing to draft.
    """

    def __init__(self, stages: int, plain: _Measured | None = None) -> None:
        self.kinds = {StepKind.SPECULATE: _Measured(), StepKind.DECODE: plain or _Measured()}
        self.without = 0
        self._since = 0
        self._resume_seconds = 0.0
        self._stages, self._resuming = stages, 0
        self._tried, self._tries_left = False, 0

    def drafts(self) -> bool:
        """Whether the next step had better draft."""
        drafted, plain = self.kinds[StepKind.SPECULATE], self.kinds[StepKind.DECODE]
        if not self._is_judged:
            return drafted.steps < _TRIES or not drafted.seconds
        if self._tries_left:
            return self._tried
        # By the time of a token.
        better = drafted.gain * plain.seconds >= drafted.seconds
        return better is not self._is_due

    def goes_on(self, drafts: bool) -> bool:
        """Notes that the next step drafts, or not, as was said. Returns whether its rows are the first to do so after
        others."""
        resumes = drafts and self._resuming > 0
        if not drafts:
            self._resuming = self._stages
        elif resumes:
            if self._resuming == self._stages:
                self._resume_seconds = 0.0
            self._resuming -= 1
        if self._tries_left:
            self._tries_left -= 1
        elif self._is_judged and self._is_due:
            self._tried, self._tries_left, self._since = drafts, _TRY * self._stages - 1, 0
        elif self._is_judged:
            self._since += 1
        return resumes

    def resumed(self, seconds: float) -> None:
        """Notes the time of a step whose rows were the first to draft after others."""
        self._resume_seconds += max(seconds - self.kinds[StepKind.SPECULATE].seconds, 0.0)

    @property
    def _is_due(self) -> bool:
        """Whether the slower kind is to be tried: what that takes is spread over the steps since it was."""
        drafted, plain = self.kinds[StepKind.SPECULATE], self.kinds[StepKind.DECODE]
        lost = _TRY * self._stages * abs(drafted.gain * plain.seconds - drafted.seconds) + self._resume_seconds
        return self._since + 1 >= max(_PAUSE, lost / (_SHARE * plain.seconds))

    @property
    def _is_judged(self) -> bool:
        return all(kind.steps >= _TRIES and kind.seconds for kind in self.kinds.values())


class DraftPolicy:
    """Decides for each step whose rows all decode.

    clock: nanoseconds; with one that stands still every step drafts. Steps are alike whose rows lie between the same
    powers of two, and that have rows under masks, or none. A step's time is that from the result before it, or from its
    own plan, to its own result. stages: of a pipeline, whose steps take a share of the rows each.

    Where a row has a prediction, what other texts gained by drafts says nothing: steps with such rows are judged by
    themselves, and anew with each prediction.
    """

    def __init__(self, clock: Callable[[], int], stages: int = 1):
        self._clock = clock
        self._stages = stages
        self._sizes: dict[tuple[int, bool], _Size] = {}
        self._predicted_sizes: dict[tuple[int, bool], _Size] = {}
        self._prediction: int | None = None
        self._begun: dict[int, tuple[int, _Size, bool]] = {}
        self._last = 0
        self._asked: tuple[_Size, bool, int] | None = None

    def drafts(self, rows: int, prediction: int | None = None, constrained: bool = False) -> bool:
        """Whether the step that is planned now, of so many rows, is to draft. prediction: a number of the prediction
        that came last; None where no row has any. constrained: whether some rows draw under masks."""
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
        self._begun[plan.index] = self._clock(), size, size.goes_on(drafts)

    def collected(self, plan: StepPlan, result: StepResult) -> None:
        """Notes a step's result. Steps before it that were not collected are forgotten."""
        now, before = self._clock(), self._last
        self._last = now
        noted = self._begun.pop(plan.index, None)
        for index in [index for index in self._begun if index < plan.index]:
            del self._begun[index]
        if noted is None or not plan.num_rows:
            return
        begun, size, resumes = noted
        seconds = (now - max(begun, before)) * 1e-9
        if resumes:
            size.resumed(seconds)
            return
        measured = size.kinds[plan.kind]
        nothing = result.drafted is not None and not result.drafted.any()
        if nothing and measured.steps < _TRIES and size.without < _WITHOUT:
            size.without += 1
            return
        gaining = np.count_nonzero(result.counts)
        if gaining:  # others had ended before, unknown to who planned it, as they would have without drafts
            measured.add(seconds, int(result.counts.sum()) / gaining)

    def _size(self, rows: int, constrained: bool) -> _Size:
        alike = (rows.bit_length(), constrained)
        size = self._sizes.get(alike)
        if size is None:
            size = self._sizes[alike] = _Size(self._stages)
        if self._prediction is None:
            return size
        predicted = self._predicted_sizes.get(alike)
        if predicted is None:
            predicted = self._predicted_sizes[alike] = _Size(self._stages, size.kinds[StepKind.DECODE])
        return predicted
