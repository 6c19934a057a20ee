"""GrammarMatcher: what one sequence may say by its grammar."""

import itertools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher

from jaxinfer.engine.constraint import MatcherError
from jaxinfer.engine.step.shapes import WORD_BITS
from jaxinfer.grammar.exclusion import Exclusion
from jaxinfer.grammar.numbers import NumberBounds, Written
from jaxinfer.grammar.thought import ThoughtEnd

_LONGEST_ERROR = 300
_LONGEST_RUN = 1024
"""Forced tokens that are told at once: to look at all of a long text at once would hold up a step."""


class Ends(NamedTuple):
    """Masks, int32 [words]. legal: what ends a text. others: the model's ids but these and its own ends."""

    legal: np.ndarray
    others: np.ndarray

    def allows(self, token: int) -> bool:
        """Return whether an id is one of the others."""
        return bool(self.others[token // WORD_BITS] >> token % WORD_BITS & 1)


class GrammarMatcher:
    """A Matcher. ends: of its sequence. on_error: called where the grammar cannot go on. thought_end: of a thought,
    before which the text is free; None: there is none. thought: the id that begins one where it is the first token;
    None: it has begun, where there is one. forced: of `forced_by` the grammar as it is given. numbers: of JSON, which
    have no end by the grammar; None: there are none. exclusion: of strings that the text must not contain; None: there
    are none.
    """

    def __init__(
        self,
        grammar: LLMatcher,
        ends: Ends,
        on_error: Callable[[], None],
        thought_end: ThoughtEnd | None = None,
        thought: int | None = None,
        forced: Sequence[int] | None = None,
        numbers: NumberBounds | None = None,
        exclusion: Exclusion | None = None,
    ):
        self.grammar = grammar
        self.ends = ends
        self.on_error = on_error
        self.thought = thought
        self._thought_end = thought_end
        self._tail = b""  # of the thought
        self._numbers, self._written = numbers, Written()
        self._exclusion = exclusion
        self._begun_text: bytes | None = b""  # as `Exclusion.follow` has it
        self._forced = forced  # None: nobody has asked since the last of them came
        self._come = 0  # how many of these have come
        self._seen = 0  # how many of them, those that have come included, are known to go on

    @property
    def begun(self) -> bool:
        """True if the grammar applies, or would but for a thought that may begin."""
        return self._thought_end is None or self.thought is not None

    @property
    def ended(self) -> bool:
        return self.thought is None and self.begun and self.grammar.is_stopped()

    def accept(self, tokens: Sequence[int]) -> None:
        for number, token in enumerate(tokens):
            if self.thought is not None:
                thinks, self.thought = token == self.thought, None
                if thinks:
                    continue
                self._thought_end = None
            if self._thought_end is None:
                return self._accept(tokens[number:])
            self._tail, ended = self._thought_end.follow(self._tail, token)
            if ended:
                self._thought_end = None
        return None

    def copy(self) -> "GrammarMatcher":
        grammar = self.grammar.deep_copy()
        copied = GrammarMatcher(
            grammar, self.ends, self.on_error, self._thought_end, self.thought, self._forced, self._numbers,
            self._exclusion,
        )  # fmt: skip
        copied._tail, copied._come, copied._seen = self._tail, self._come, self._seen
        copied._written, copied._begun_text = self._written, self._begun_text
        return copied

    def thought_mask(self) -> np.ndarray:
        """Return the mask of the tokens that may follow in the current thought, int32 [words]."""
        assert self._thought_end is not None
        return self._thought_end.mask(self._tail)

    def restrict(self, row: np.ndarray) -> None:
        """Take out of a mask, int32 [words], digits that make a number too long, and letters that end what is
        excluded."""
        if self._numbers is not None:
            self._numbers.bound(self._written, row)
        if self._exclusion is not None:
            self._exclusion.exclude(self._begun_text, row)

    def forced(self) -> Sequence[int]:
        if self.thought is not None or not self.begun or self._exclusion is not None:
            return ()
        return self._look_ahead()[self._come : self._seen]

    def _look_ahead(self) -> Sequence[int]:
        """Return the forced tokens from the place on where they were computed. If there are any beyond the tokens that
        have come, at least one is included; the run stops before a token that ends the text, which no grammar may
        force."""
        if self._forced is None:
            self._forced, self._come, self._seen = forced_by(self.grammar), 0, 0
        if self._come == self._seen < len(self._forced):
            ahead = self.grammar.deep_copy()

            def goes_on(token: int) -> bool:
                return self.ends.allows(token) and ahead.consume_token(token) and not ahead.is_stopped()

            run = self._forced[self._come : self._come + _LONGEST_RUN]
            going_on = sum(1 for _ in itertools.takewhile(goes_on, run))
            self._seen += going_on
            if going_on < len(run):
                self._forced = self._forced[: self._seen]
        return self._forced

    def _accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            forced = self._look_ahead()
            came = self._come < len(forced) and forced[self._come] == token
            if not self.grammar.consume_token(token):
                self.on_error()
                raise MatcherError(f"the grammar cannot go on: {error_of(self.grammar)}")
            if self._numbers is not None:
                self._written = self._numbers.follow(self._written, token)
            if self._exclusion is not None:
                self._begun_text = self._exclusion.follow(self._begun_text, token)
            self._come += came
            if not came or self._come == len(forced):
                self._forced = None


def forced_by(grammar: LLMatcher) -> Sequence[int]:
    """The tokens that must follow. Where llguidance allows several spellings of what is forced, this is the
    tokenizer's, so that no text depends on which tokens were computed together."""
    return [] if grammar.is_accepting() else grammar.compute_ff_tokens()


def error_of(grammar: LLMatcher) -> str:
    """Return the grammar's error in a line."""
    return first_line(grammar.get_error() or "no reason was told")


def first_line(told: str) -> str:
    """The first line of an error of llguidance, and the reason that a regex is none; others are of its own state."""
    first, *others = told.strip().splitlines() or [""]
    reason = next((line for line in others if line.startswith("error:")), "")
    for pattern, instead in _IN_OTHER_WORDS:
        first = pattern.sub(instead, first)
    return f"{first[:_LONGEST_ERROR]} {reason[:_LONGEST_ERROR]}".strip()


_IN_OTHER_WORDS = [
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"^NoExtensionBias$", "no text fits it"),
        (r"^at \d+\(\d+\): ", ""),  # a place in a grammar that nobody has sent
        (r" \(in regex\)", ""),
        (r"^Parser Error: .* has (\d+) items; max is (\d+).*", r"\1 things may come at one place; \2 are allowed"),
        (r"\.? *Enable 'coerce_one_of' option.*", ""),
    )
]
