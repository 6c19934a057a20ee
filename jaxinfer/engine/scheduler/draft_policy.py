"""DraftPolicy: whether the next step drafts, by what tokens have taken with drafts and without."""

import math
from collections import deque
from collections.abc import Callable

import numpy as np

from jaxinfer.engine.step.plan import StepKind, StepPlan, StepResult

_MINUTE = 60e9
"""Nanoseconds after which a measurement weighs 1/e of a new one."""
_PERIOD, _BEGIN, _TRY = 200, 150, range(190, 192)
"""Steps from one decision to the next, the one of them that is the first of all, and those that do the opposite."""
_UNMEASURED = (0, _BEGIN, _TRY.start, _TRY.stop)
"""Steps that may be the first of all, or the first with drafts after others, in which a draft model catches up."""


class _Kind:
    """Comparable steps. sums: float64 [2, 2], nanoseconds and tokens without drafts and with them, weighted by age."""

    def __init__(self, steps: int) -> None:
        self.steps, self.is_on = steps, True
        self.sums, self.measured_at = np.zeros((2, 2)), 0

    def decide(self) -> None:
        (plain_time, plain_tokens), (time, tokens) = self.sums
        self.is_on = bool(time * plain_tokens <= plain_time * tokens)

    def measure(self, drafts: bool, now: int, nanoseconds: int, tokens: int) -> None:
        self.sums *= math.exp((self.measured_at - now) / _MINUTE)
        self.sums[int(drafts)] += nanoseconds, tokens
        self.measured_at = now


class DraftPolicy:
    """Decides for each step whose rows all decode. Drafting is off while a token has taken longer with drafts than
    without over about the last minute. One step in a hundred does the opposite, so that both are measured.

    Steps are compared whose numbers of rows have as many bits, and that have rows under masks, or none. Those with a
    prediction are judged separately, and again with each new one. A step's time is that from the result before it, or
    from its own plan, to its own result.

    clock: nanoseconds. tokens: drafts of a row in a step that drafts. stages: of a pipeline, whose steps take a share
    of the rows each, so that periods are as many times longer.
    """

    def __init__(self, clock: Callable[[], int], tokens: int, stages: int = 1):
        self.tokens = tokens
        self._clock, self._stages = clock, stages
        self._kinds: dict[tuple[int, bool, int | None], _Kind] = {}
        self._asked: tuple[_Kind, bool, int] | None = None
        self._begun = deque[tuple[int, int, _Kind, bool]]()
        self._collected_at = 0

    def drafts(self, rows: int, prediction: int | None = None, constrained: bool = False) -> int:
        """Return how many drafts a row may have in the step that is planned now: `tokens` or none. prediction: the
        number of the newest one; None if no row has any. constrained: True if some rows draw under masks."""
        key = rows.bit_length(), constrained, prediction
        if key not in self._kinds:
            current = {old: kind for old, kind in self._kinds.items() if old[2] in (None, prediction)}
            self._kinds = {**current, key: _Kind(_BEGIN * self._stages)}
        kind = self._kinds[key]
        if not kind.steps % (_PERIOD * self._stages):
            kind.decide()
        drafts = kind.is_on != (self._place(kind) in _TRY)
        self._asked = kind, drafts, rows
        return self.tokens if drafts else 0

    def planned(self, plan: StepPlan) -> None:
        """Note a step that is dispatched now. It counts if it is as asked for: others wait for masks or blocks."""
        asked, self._asked = self._asked, None
        if asked is None:
            return
        kind, drafts, rows = asked
        if plan.kind is (StepKind.SPECULATE if drafts else StepKind.DECODE) and plan.num_rows == rows:
            if self._place(kind) not in _UNMEASURED:
                self._begun.append((plan.index, self._clock(), kind, drafts))
            kind.steps += 1

    def collected(self, plan: StepPlan, result: StepResult) -> None:
        """Note a step's result. Steps before it that were not collected have failed."""
        now, before = self._clock(), self._collected_at
        self._collected_at = now
        while self._begun and self._begun[0][0] <= plan.index:
            index, begun, kind, drafts = self._begun.popleft()
            if index == plan.index:
                kind.measure(drafts, now, now - max(begun, before), int(result.counts.sum()))

    def _place(self, kind: _Kind) -> int:
        return kind.steps // self._stages % _PERIOD
