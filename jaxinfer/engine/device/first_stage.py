"""What the first stage of a simulated pipeline knows of newest tokens: not those that are on their way back."""

from collections import deque
from typing import NamedTuple

import numpy as np

_KEPT = 64
"""Steps: more than any pipeline has stages."""


class _Drawn(NamedTuple):
    step: int
    newest: "Newest"


class Newest(NamedTuple):
    """Of slots, int32 each: the newest token and its position."""

    position: np.ndarray
    token: np.ndarray

    def of(self, slots: np.ndarray) -> "Newest":
        """Of some slots; a copy."""
        return Newest(self.position[slots], self.token[slots])


class FirstStage:
    """Newest tokens of slots: those that admissions bring, and what came back from the last stage after each step that
    drew. A step reads what there was after the one that it needs: nothing that was drawn later, however long ago."""

    def __init__(self, slots: int):
        self._admitted = Newest(np.zeros(slots, np.int32), np.zeros(slots, np.int32))
        self._drawn: deque[_Drawn] = deque([_Drawn(-1, self._admitted.of(np.arange(slots)))], maxlen=_KEPT)

    def admit(self, slots: np.ndarray, newest: Newest) -> None:
        """Slots that sequences have got."""
        for own, new in zip(self._admitted, newest, strict=True):
            own[slots] = new

    def feed(self, step: int, newest: Newest) -> None:
        """What all slots have after a step."""
        self._drawn.append(_Drawn(step, Newest(*(own.copy() for own in newest))))

    def newest(self, slots: np.ndarray, drawn: np.ndarray, needs: int) -> Newest:
        """Of some slots. drawn: whether a step has drawn it; as a step's packed array has it. needs: of the step."""
        known = next((each.newest for each in reversed(self._drawn) if each.step <= needs), self._drawn[0].newest)
        both = zip(known.of(slots), self._admitted.of(slots), strict=True)
        return Newest(*(np.where(drawn > 0, came_back, admitted) for came_back, admitted in both))
