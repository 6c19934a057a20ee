"""What the first stage of a simulated pipeline knows of slots: less than the last, by what is on its way back."""

from collections import deque
from typing import NamedTuple

import numpy as np

_BACK_AFTER = 64
"""Steps: more than any pipeline has stages."""


class _Fed(NamedTuple):
    step: int
    slots: np.ndarray
    length: np.ndarray
    last_token: np.ndarray
    epoch: np.ndarray


class FirstStage:
    """Length and newest token of each slot, int32 [slots]. Admissions are there at once, and what a step draws when a
    step that needs it begins: not before, however long ago it was drawn. What was drawn for a slot that has changed
    hands since is dropped."""

    def __init__(self, slots: int):
        self.length = np.zeros(slots, np.int32)
        self.last_token = np.zeros(slots, np.int32)
        self._epoch = np.zeros(slots, np.int64)
        self._fed: deque[_Fed] = deque()

    def admit(self, slots: np.ndarray, length: np.ndarray, last_token: np.ndarray) -> None:
        """Slots that sequences have got."""
        self.length[slots], self.last_token[slots] = length, last_token
        self._epoch[slots] += 1

    def feed(self, step: int, slots: np.ndarray, length: np.ndarray, last_token: np.ndarray) -> None:
        """What a step has drawn for some slots."""
        self._fed.append(_Fed(step, slots, length[slots], last_token[slots], self._epoch[slots]))

    def begin(self, step: int, needs: int) -> None:
        """Before a step that needs what steps up to another one have drawn; what is old is back in any case."""
        while self._fed and self._fed[0].step <= max(needs, step - _BACK_AFTER):
            fed = self._fed.popleft()
            same = self._epoch[fed.slots] == fed.epoch
            self.length[fed.slots[same]] = fed.length[same]
            self.last_token[fed.slots[same]] = fed.last_token[same]
