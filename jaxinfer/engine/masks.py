"""StepMasks: which tokens the slots of constrained sequences may draw next, as the device has it."""

import logging
from typing import NamedTuple

import numpy as np

from jaxinfer.engine.constraint import Constraints, Matcher
from jaxinfer.engine.device.in_flight import InFlightSteps
from jaxinfer.engine.sequence import Sequence
from jaxinfer.engine.slot_table import SlotTable
from jaxinfer.engine.step.plan import StepPlan
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.engine.token_rules import RuledMatcher

_NO_ROWS = np.zeros(0, np.int64)
log = logging.getLogger(__name__)


class StepMasks:
    """Fills masks and sends those that have changed. constraints: None: no sequence has a matcher but of its rules."""

    def __init__(self, shapes: EngineShapes, table: SlotTable, constraints: Constraints | None):
        self._table = table
        self._constraints = constraints
        self._words = shapes.mask_words
        self._sent: dict[int, np.ndarray] = {}

    def rows(self, plan: StepPlan) -> np.ndarray:
        """Rows of a plan that draw under a mask, int."""
        if not self._table.num_constrained:
            return _NO_ROWS
        return np.flatnonzero((plan.samples > 0) & self._table.constrained[plan.slots])

    def send(
        self, in_flight: InFlightSteps, sequences: list[Sequence], matchers: list[Matcher]
    ) -> dict[int, "MaskError"]:
        """Before these sequences draw, by what these matchers say. Returns errors by the sequence's number. Raises
        StepFault."""
        rows = np.zeros((len(sequences), self._words), np.int32)
        errors = self._fill(sequences, matchers, rows)
        slots = [sequence.slot for sequence in sequences]
        new = [number for number, slot in enumerate(slots) if number not in errors and self._is_new(slot, rows[number])]
        if new:
            in_flight.set_masks(np.array(slots, np.int32)[new], rows[new])
            # Copies: a view of a row would keep the rows of all others.
            self._sent.update((slots[number], rows[number].copy()) for number in new)
        return errors

    def _fill(self, sequences: list[Sequence], matchers: list[Matcher], rows: np.ndarray) -> dict[int, "MaskError"]:
        """What grammars allow, less what rules forbid."""
        ruled = {number: matcher for number, matcher in enumerate(matchers) if isinstance(matcher, RuledMatcher)}
        inner = [matcher.inner if isinstance(matcher, RuledMatcher) else matcher for matcher in matchers]
        asked = {number: matcher for number, matcher in enumerate(inner) if matcher is not None}
        if not ruled:
            return self._filled(sequences, asked, rows)
        filled, numbers = np.zeros((len(asked), self._words), np.int32), list(asked)
        errors = self._filled(sequences, asked, filled) if asked else {}
        rows[:] = -1
        rows[numbers] = filled
        for number in ruled.keys() - errors.keys():
            if error := ruled[number].restrict(rows[number]):
                errors[number] = MaskError(error, ruled[number].rules.param)
        return errors

    def _filled(
        self, sequences: list[Sequence], matchers: dict[int, Matcher], rows: np.ndarray
    ) -> dict[int, "MaskError"]:
        """Of the grammars of some sequences, by their numbers, a row each. Whatever is wrong here is not the device's
        fault."""
        assert self._constraints is not None
        try:
            errors = self._constraints.fill(list(matchers.values()), rows)
        except Exception as error:
            log.exception("masks could not be filled")
            return dict.fromkeys(matchers, MaskError(f"masks could not be filled: {type(error).__name__}", None))
        numbers = list(matchers)
        return {
            numbers[row]: MaskError(error, sequences[numbers[row]].constraint_param) for row, error in errors.items()
        }

    def forget(self) -> None:
        """After the device has lost its slots."""
        self._sent.clear()

    def _is_new(self, slot: int, mask: np.ndarray) -> bool:
        return slot not in self._sent or not np.array_equal(self._sent[slot], mask)


class MaskError(NamedTuple):
    """Why a sequence can draw nothing. param: the request's field that brought it about, or None."""

    text: str
    param: str | None
