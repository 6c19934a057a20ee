"""StepMasks.send_with_drafts beside a plain model: which masks a device has then, and how many drafts may be kept."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.engine.device.in_flight import InFlightSteps
from jaxinfer.engine.kv.manager import BlockRefs
from jaxinfer.engine.masks import StepMasks
from jaxinfer.engine.sequence import Sequence as EngineSequence
from jaxinfer.engine.slot_table import SlotTable
from jaxinfer.engine.step.shapes import WORD_BITS
from jaxinfer.engine.token_rules import RuledMatcher, TokenRules
from jaxinfer.sampling import SamplingParams
from jaxinfer.speculation import Speculation
from tests.engine.rules_model import RULES, kept
from tests.engine.small import VOCABULARY, RecordingRunner, small_shapes
from tests.engine.toy_grammar import Toy, ToyConstraints, ToyMatcher

DRAFTS = 3
SHAPES = small_shapes(drafting=Speculation(DRAFTS, 1, 2))
STOP = 7
Masks = dict[int, frozenset[int]]
"""Tokens that are legal, by the place of the mask."""


class Asked(NamedTuple):
    """A sequence in a slot: what it may say by a grammar, or None, and by rules; what it has said, and its drafts."""

    slot: int
    toy: Toy | None
    rules: str
    outputs: tuple[int, ...]
    drafts: tuple[int, ...]

    @property
    def params(self) -> SamplingParams:
        constraint = None if self.toy is None else self.toy.constraint
        return SamplingParams(structured_outputs=constraint, min_tokens=2, max_tokens=30, **RULES[self.rules])

    def legal(self, outputs: Sequence[int]) -> list[int]:
        """By their descriptions alone, without matchers and masks."""
        stops = frozenset({STOP})
        ids = range(VOCABULARY) if self.toy is None else self.toy.allowed(outputs, stops, VOCABULARY)
        return kept(self.params, ids, outputs, stops)

    def is_whole(self, outputs: Sequence[int]) -> bool:
        return self.toy is not None and len(outputs) == self.toy.length


class Device(InFlightSteps):
    """Keeps the masks that it is sent."""

    def __init__(self) -> None:
        super().__init__(RecordingRunner(SHAPES))
        self.masks: Masks = {}
        self.sent: list[int] = []

    def set_masks(self, places: np.ndarray, rows: np.ndarray) -> None:
        assert len(set(places.tolist())) == len(places)
        self.sent = places.tolist()
        for place, row in zip(self.sent, rows, strict=True):
            bits = np.unpackbits(row.view(np.uint8), bitorder="little")
            self.masks[place] = frozenset(np.flatnonzero(bits).tolist())


def expected(asked: Sequence[Asked], fails: frozenset[int]) -> tuple[Masks, list[int], set[int]]:
    """Masks, how many drafts each sequence may keep, and which of them can draw nothing."""
    masks: Masks = {}
    counts, failed = [0] * len(asked), set[int]()
    for number, each in enumerate(asked):
        for kept_drafts in range(len(each.drafts) + 1):
            outputs = [*each.outputs, *each.drafts[:kept_drafts]]
            if kept_drafts and (outputs[-1] == STOP or outputs[-1] not in each.legal(outputs[:-1])):
                break
            if kept_drafts and each.is_whole(outputs):
                break
            legal = each.legal(outputs)
            if not legal or (each.toy is not None and len(outputs) in fails):
                failed |= {number} if not kept_drafts else set()
                break
            masks[each.slot * SHAPES.slot_masks + kept_drafts] = frozenset(legal)
            counts[number] = kept_drafts
    return masks, counts, failed


def matcher_of(each: Asked) -> ToyMatcher | RuledMatcher:
    stops = frozenset({STOP})
    inner = None if each.toy is None else ToyMatcher(each.toy, stops, VOCABULARY)
    if each.rules == "none":
        assert inner is not None
        inner.tokens = list(each.outputs)
        return inner
    matcher = RuledMatcher(TokenRules(each.params, stops, VOCABULARY), inner)
    matcher.accept(each.outputs)
    return matcher


def sequence_of(each: Asked) -> EngineSequence:
    made = EngineSequence(
        f"{each.slot}",
        np.arange(3, dtype=np.int32),
        each.params,
        limit=30,
        seed=0,
        stop_ids=frozenset({STOP}),
        arrival=each.slot,
        kv=BlockRefs(1, ("", "")),
    )
    made.slot = each.slot
    return made


def sent(masks: StepMasks, device: Device, asked: Sequence[Asked]) -> tuple[list[int], set[int]]:
    """What the masks have said; matchers are as they were."""
    matchers = [matcher_of(each) for each in asked]
    counts, errors = masks.send_with_drafts(
        device, [sequence_of(each) for each in asked], list(matchers), [list(each.drafts) for each in asked]
    )
    for each, matcher in zip(asked, matchers, strict=True):
        inner = matcher.inner if isinstance(matcher, RuledMatcher) else matcher
        assert inner is None or (isinstance(inner, ToyMatcher) and inner.tokens == list(each.outputs))
        assert not isinstance(matcher, RuledMatcher) or matcher._generated == len(each.outputs)
    return counts, set(errors)


def step_masks(fails: frozenset[int]) -> StepMasks:
    return StepMasks(SHAPES, SlotTable(SHAPES.max_num_seqs, SHAPES.max_model_len), ToyConstraints(VOCABULARY, fails))


@st.composite
def asked_in(draw: st.DrawFn, slot: int) -> Asked:
    """Mostly legal outputs and drafts."""
    rules = draw(st.sampled_from(["none", *RULES]))
    length = draw(st.sampled_from([3, 6, 20]))
    toy = None if rules != "none" and draw(st.booleans()) else Toy(draw(st.integers(0, 9)), length, draw(st.booleans()))
    found = Asked(slot, toy, rules, (), ())

    def text(begun: list[int], most: int, wrong: bool) -> list[int]:
        tokens = list[int]()
        for _ in range(draw(st.integers(0, most))):
            legal = found.legal([*begun, *tokens])
            legal = legal if wrong else [token for token in legal if token != STOP]
            if wrong and draw(st.integers(0, 5)) == 0:
                legal = list(range(VOCABULARY))
            if not legal or (not wrong and found.is_whole([*begun, *tokens, 0])):
                break
            tokens.append(draw(st.sampled_from(legal)))
        return tokens

    outputs = text([], 5, False)
    return found._replace(outputs=tuple(outputs), drafts=tuple(text(outputs, DRAFTS, True)))


@given(
    rounds=st.lists(st.tuples(*(st.none() | asked_in(slot) for slot in range(4))), min_size=1, max_size=3),
    fails=st.frozensets(st.integers(0, 8), max_size=2),
)
def test_masks_are_those_of_a_plain_model(rounds: list[tuple[Asked | None, ...]], fails: frozenset[int]) -> None:
    """Of slots that go on, or have changed hands; what the device has already is not sent again."""
    masks, device, right = step_masks(fails), Device(), Masks()
    for each in rounds:
        asked = [one for one in each if one is not None]
        if not asked:
            continue
        device.sent = []
        new, counts, failed = expected(asked, fails)
        assert sent(masks, device, asked) == (counts, failed)
        assert sorted(device.sent) == sorted(place for place, legal in new.items() if right.get(place) != legal)
        right |= new
        assert device.masks == right


TOY = Toy(5, 20, forces=False)
FIRST, SECOND = TOY.allowed([], frozenset(), VOCABULARY)[1:3]
CASES = {
    "none": ((), 0),
    "legal": ((FIRST,), 1),
    "illegal": ((FIRST + 1, FIRST), 0),
    "illegal after a legal one": ((FIRST, FIRST + 1), 1),
}


@pytest.mark.parametrize("case", CASES)
def test_drafts_up_to_the_first_that_is_illegal(case: str) -> None:
    drafts, count = CASES[case]
    if case.startswith("illegal after"):
        drafts = (FIRST, next(t for t in range(VOCABULARY) if t not in TOY.allowed([FIRST], frozenset(), VOCABULARY)))
    device = Device()
    assert sent(step_masks(frozenset()), device, [Asked(1, TOY, "none", (), drafts)]) == ([count], set())
    assert sorted(device.masks) == [SHAPES.slot_masks + step for step in range(count + 1)]


def test_a_mask_that_fails_later_is_no_error_yet() -> None:
    asked = Asked(0, TOY, "none", (), (FIRST, *TOY.allowed([FIRST], frozenset(), VOCABULARY)[:1]))
    assert sent(step_masks(frozenset({1})), Device(), [asked]) == ([0], set())
    assert sent(step_masks(frozenset({2})), Device(), [asked]) == ([1], set())
    assert sent(step_masks(frozenset({0})), Device(), [asked]) == ([0], {0})


def test_a_device_that_has_forgotten_gets_all_masks_again() -> None:
    masks, device, asked = step_masks(frozenset()), Device(), [Asked(2, TOY, "none", (), (FIRST,))]
    sent(masks, device, asked)
    places, device.sent = device.sent, []
    sent(masks, device, asked)
    assert not device.sent
    masks.forget()
    sent(masks, device, asked)
    assert device.sent == places == [2 * SHAPES.slot_masks, 2 * SHAPES.slot_masks + 1]


def test_bits_beyond_the_vocabulary_are_never_legal() -> None:
    """61 tokens, in two words."""
    assert SHAPES.mask_words * WORD_BITS > VOCABULARY
    asked = Asked(0, TOY, "none", (), (VOCABULARY,))
    assert sent(step_masks(frozenset()), Device(), [asked]) == ([0], set())
