"""Repetition: whether texts repeat themselves while nothing is drafted for them, looked up on the host."""

from collections.abc import Sequence

from jaxinfer.engine.step.plan import StepPlan, StepResult

_ROWS = 4
"""Rows that are looked at: the first of each plan."""
_MOST_KNOWN = 4096
"""Pairs of tokens of a row that are kept."""
_SOON = 8
"""Times the streak that was needed: steps after which a text that repeats itself again is no sign of a mistake."""
_LONGEST = 2048
"""Tokens of a streak that may come to be needed."""


class Repetition:
    """Follows the first rows of plans, and counts how often in a row the token came that had followed the last two
    where they stood before, which n-grams would have drafted.

    streak: so many that a text is taken to repeat itself; 0: nothing is followed. Twice as many are needed if it was
    taken so a moment ago: then drafts did not pay, or it would draft still.
    """

    def __init__(self, streak: int):
        self._streak = self._needed = streak
        self._steps_since = _SOON * _LONGEST
        self._rows: dict[int, _Row] = {}

    def note(self, plan: StepPlan, result: StepResult) -> None:
        """Take up the tokens of a step that was collected."""
        if not self._streak:
            return
        self._steps_since += 1
        slots, epochs = plan.slots[:_ROWS].tolist(), plan.epochs[:_ROWS].tolist()
        rows: dict[int, _Row] = {}
        for number, (slot, epoch) in enumerate(zip(slots, epochs, strict=True)):
            row = self._rows.get(slot)
            rows[slot] = row = row if row is not None and row.epoch == epoch else _Row(epoch)
            row.add(result.tokens[number, : result.counts[number]].tolist())
        self._rows = rows

    def is_found(self) -> bool:
        """Return whether half of the rows repeat themselves now; they are counted from 0 again."""
        repeating = sum(row.streak >= self._needed for row in self._rows.values())
        if not repeating or 2 * repeating < len(self._rows):
            return False
        is_soon = self._steps_since <= _SOON * self._needed
        self._needed = min(2 * self._needed, _LONGEST) if is_soon else self._streak
        self._steps_since = 0
        for row in self._rows.values():
            row.streak = 0
        return True


class _Row:
    """A sequence's tokens. streak: the last ones that would have been drafted."""

    def __init__(self, epoch: int):
        self.epoch = epoch
        self.streak = 0
        self._last = (-1, -1)
        self._known: dict[tuple[int, int], int] = {}

    def add(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.streak = self.streak + 1 if self._known.get(self._last) == token else 0
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[self._last] = token
            self._last = (self._last[1], token)
