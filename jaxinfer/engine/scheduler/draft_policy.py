"""DraftPolicy: whether drafts pay in the next step, from what steps with and without them have taken and given."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jaxinfer.engine.step.plan import StepKind, StepPlan, StepResult

_TRIES = 3
"""Steps of a kind before it is judged: the first meet cold caches."""
_SHARE = 0.01
"""Of the time, for trying what is slower: texts change."""
_PAUSE = 8
"""Steps between two tries, at least."""
_WEIGHT = 0.2
"""Of a new measurement in a mean."""


@dataclass
class _Measured:
    """Steps of one kind: how many, seconds of one, tokens that a row got."""

    steps: int = 0
    seconds: float = 0.0
    gain: float = 1.0

    def add(self, seconds: float, gain: float) -> None:
        self.steps += 1
        weight = max(_WEIGHT, 1 / self.steps)
        first = self.steps <= _TRIES
        self.seconds = min(seconds, self.seconds or seconds) if first else self._mean(self.seconds, seconds)
        self.gain += weight * (gain - self.gain)

    def _mean(self, old: float, new: float) -> float:
        return old + _WEIGHT * (min(new, 4 * old) - old)  # a machine that pauses says nothing of its steps


class _Size:
    """Steps of so many rows, with drafts and without. pause: steps until the slower kind is tried again."""

    def __init__(self) -> None:
        self.kinds = {StepKind.SPECULATE: _Measured(), StepKind.DECODE: _Measured()}
        self.pause = _PAUSE

    def drafts(self) -> bool:
        drafted, plain = self.kinds[StepKind.SPECULATE], self.kinds[StepKind.DECODE]
        if drafted.steps < _TRIES or not drafted.seconds:
            return True
        if plain.steps < _TRIES:
            return False
        # By the time of a token.
        better = drafted.gain * plain.seconds >= drafted.seconds
        self.pause -= 1
        if self.pause > 0:
            return better
        lost = abs(drafted.gain * plain.seconds - drafted.seconds)
        self.pause = max(_PAUSE, round(lost / (_SHARE * plain.seconds)))
        return not better


class DraftPolicy:
    """Decides for each step whose rows all decode.

    clock: nanoseconds; with one that stands still every step drafts. Steps are alike whose rows lie between the same
    powers of two. A step's time is that from the result before it, or from its own plan, to its own result.
    """

    def __init__(self, clock: Callable[[], int]):
        self._clock = clock
        self._sizes: dict[int, _Size] = {}
        self._begun: dict[int, int] = {}
        self._last = 0

    def drafts(self, rows: int) -> bool:
        """Whether a step of so many rows is to draft."""
        return self._size(rows).drafts()

    def planned(self, plan: StepPlan) -> None:
        """Notes a step that is dispatched now."""
        self._begun[plan.index] = self._clock()

    def collected(self, plan: StepPlan, result: StepResult) -> None:
        """Notes a step's result. Steps before it that were not collected are forgotten."""
        now, before = self._clock(), self._last
        self._last = now
        begun = max(self._begun.pop(plan.index, now), before)
        for index in [index for index in self._begun if index < plan.index]:
            del self._begun[index]
        if plan.kind in (StepKind.DECODE, StepKind.SPECULATE) and plan.num_rows:
            seconds = (now - begun) * 1e-9
            self._size(plan.num_rows).kinds[plan.kind].add(seconds, float(np.mean(result.counts)))

    def _size(self, rows: int) -> _Size:
        return self._sizes.setdefault(rows.bit_length(), _Size())
