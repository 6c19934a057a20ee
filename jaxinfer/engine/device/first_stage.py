"""Newest tokens as the first stage of a simulated pipeline knows them, without tokens on their way back."""

from collections import deque
from typing import NamedTuple

import numpy as np

_KEPT = 64
"""Steps: more than any pipeline has stages."""


class _Drawn(NamedTuple):
    step: int
    newest: "KnownNewest"


class KnownNewest(NamedTuple):
    """Newest token of each slot and its position, int32 each."""

    position: np.ndarray
    token: np.ndarray

    def of(self, slots: np.ndarray) -> "KnownNewest":
        """Return the newest tokens of some slots, as a copy."""
        return KnownNewest(self.position[slots], self.token[slots])


class FirstStage:
    """Newest tokens of slots: those that admissions bring, and what came back from the last stage after each step that
    drew. A step reads what there was after the one that it needs: nothing that was drawn later, however long ago."""

    def __init__(self, slots: int):
        self._admitted = KnownNewest(np.zeros(slots, np.int32), np.zeros(slots, np.int32))
        self._drawn: deque[_Drawn] = deque([_Drawn(-1, self._admitted.of(np.arange(slots)))], maxlen=_KEPT)

    def admit(self, slots: np.ndarray, newest: KnownNewest) -> None:
        """Slots that sequences have got."""
        for own, new in zip(self._admitted, newest, strict=True):
            own[slots] = new

    def feed(self, step: int, newest: KnownNewest) -> None:
        """Record the newest tokens of all slots after a step."""
        self._drawn.append(_Drawn(step, KnownNewest(*(own.copy() for own in newest))))

    def newest(self, slots: np.ndarray, drawn: np.ndarray, needs: int) -> KnownNewest:
        """Return the newest tokens of some slots. drawn: above 0 if a step has drawn the token, else an admission
        brought it. needs: index of the step that the current one depends on."""
        known = next((each.newest for each in reversed(self._drawn) if each.step <= needs), self._drawn[0].newest)
        both = zip(known.of(slots), self._admitted.of(slots), strict=True)
        return KnownNewest(*(np.where(drawn > 0, came_back, admitted) for came_back, admitted in both))
