"""What the first stage of a simulated pipeline knows of newest tokens: not those that are on their way back."""

from collections import deque
from typing import NamedTuple

import numpy as np

_KEPT = 64
"""Steps: more than any pipeline has stages."""


class _Drawn(NamedTuple):
    step: int
    newest: np.ndarray


class FirstStage:
    """Newest tokens of slots: those that admissions bring, and what came back from the last stage after each step that
    drew. A step reads what there was after the one that it needs: nothing that was drawn later, however long ago."""

    def __init__(self, slots: int):
        self._admitted = np.zeros(slots, np.int32)
        self._drawn: deque[_Drawn] = deque([_Drawn(-1, self._admitted.copy())], maxlen=_KEPT)

    def admit(self, slots: np.ndarray, newest: np.ndarray) -> None:
        """Slots that sequences have got."""
        self._admitted[slots] = newest

    def feed(self, step: int, newest: np.ndarray) -> None:
        """What all slots have after a step."""
        self._drawn.append(_Drawn(step, newest.copy()))

    def newest(self, slots: np.ndarray, drawn: np.ndarray, needs: int) -> np.ndarray:
        """Of some slots. drawn: whether a step has drawn it; as a step's packed array has it. needs: of the step."""
        known = next((each.newest for each in reversed(self._drawn) if each.step <= needs), self._drawn[0].newest)
        return np.where(drawn > 0, known[slots], self._admitted[slots])
