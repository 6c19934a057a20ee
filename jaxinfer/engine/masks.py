"""StepMasks: which tokens the slots of constrained sequences may draw next, as the device has it."""

import logging
from typing import NamedTuple

import numpy as np

from jaxinfer.engine.constraint import Constraints, Matcher, MatcherError
from jaxinfer.engine.device.in_flight import InFlightSteps
from jaxinfer.engine.sequence import Sequence
from jaxinfer.engine.slot_table import SlotTable
from jaxinfer.engine.step.plan import StepPlan
from jaxinfer.engine.step.shapes import WORD_BITS, EngineShapes
from jaxinfer.engine.token_rules import RuledMatcher

_NO_ROWS = np.zeros(0, np.int64)
log = logging.getLogger(__name__)


class StepMasks:
    """Fills masks and sends those that have changed. constraints: None: no sequence has a matcher but of its rules."""

    def __init__(self, shapes: EngineShapes, table: SlotTable, constraints: Constraints | None):
        self._table = table
        self._constraints = constraints
        self._words = shapes.mask_words
        self._of_slot = shapes.slot_masks
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
        right = [number for number in range(len(sequences)) if number not in errors]
        places = np.array([sequences[number].slot * self._of_slot for number in right], np.int64)
        self._send(in_flight, places, rows[right])
        return errors

    def send_with_drafts(
        self, in_flight: InFlightSteps, sequences: list[Sequence], matchers: list[Matcher], drafts: list[list[int]]
    ) -> tuple[list[int], dict[int, "MaskError"]]:
        """Send masks as `send` does, and those after each of a sequence's drafts, up to the first draft that the
        sequence may not draw, that ends it, or after which nothing may be drawn. Returns also how many drafts have
        masks after them."""
        left = list(range(len(sequences)))
        first: dict[int, MaskError] = {}
        sent, found = list[np.ndarray](), list[np.ndarray]()
        followed, counts = dict(enumerate(matchers)), [-1] * len(sequences)
        for step in range(self._of_slot):
            rows = np.zeros((len(left), self._words), np.int32)
            errors = self._fill([sequences[n] for n in left], [followed[n] for n in left], rows)
            if step == 0:
                first = errors
            right = [row for row in range(len(left)) if row not in errors]
            sent.append(np.array([sequences[left[row]].slot * self._of_slot + step for row in right], np.int64))
            found.append(rows[right])
            going_on = list[int]()
            for row in right:
                number = left[row]
                counts[number] = step
                if step < len(drafts[number]):
                    after = _after(followed[number], step, drafts[number][step], rows[row], sequences[number])
                    if after is not None:
                        followed[number] = after
                        going_on.append(number)
            left = going_on
            if not left:
                break
        self._send(in_flight, np.concatenate(sent), np.concatenate(found))
        return [max(count, 0) for count in counts], first

    def _send(self, in_flight: InFlightSteps, places: np.ndarray, rows: np.ndarray) -> None:
        """Sends what the device does not have. places: as `Packer.masks` has them."""
        new = [number for number, place in enumerate(places.tolist()) if self._is_new(place, rows[number])]
        if new:
            in_flight.set_masks(places[new], rows[new])
            # Copies: a view of a row would keep the rows of all others.
            self._sent.update((int(places[number]), rows[number].copy()) for number in new)

    def _fill(self, sequences: list[Sequence], matchers: list[Matcher], rows: np.ndarray) -> dict[int, "MaskError"]:
        """Fill masks with the tokens that grammars allow, less those that rules forbid."""
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
        """Fill the masks of some sequences' grammars, by their numbers, a row each. Errors here are not the device's
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

    def _is_new(self, place: int, mask: np.ndarray) -> bool:
        return place not in self._sent or not np.array_equal(self._sent[place], mask)


def _after(matcher: Matcher, step: int, draft: int, mask: np.ndarray, sequence: Sequence) -> Matcher | None:
    """Return the matcher after one more draft, number `step`; None if the draft is illegal or ends the sequence. mask:
    int32 [words], of the tokens that may be drawn instead of the draft. matcher: its state before the draft; after the
    first draft a copy."""
    legal = int(mask[draft // WORD_BITS]) >> draft % WORD_BITS & 1
    if not legal or draft in sequence.stop_ids:
        return None
    ahead = matcher.copy() if step == 0 else matcher
    try:
        ahead.accept([draft])
    except MatcherError:
        return None
    return None if ahead.ended else ahead


class MaskError(NamedTuple):
    """Why a sequence can draw nothing. param: the request's field that brought it about, or None."""

    text: str
    param: str | None
