"""A toy grammar: which tokens may follow is a sum over those before, and a text has so many tokens at most."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxinfer.constraint import Constraint
from jaxinfer.engine.constraint import ConstraintStats, Matcher, MatcherError
from jaxinfer.engine.step.shapes import WORD_BITS
from jaxinfer.errors import ParameterError
from jaxinfer.sampling import SamplingParams


class Toy(NamedTuple):
    """A third of the vocabulary may follow, another third after other tokens; half of the time a single one of them,
    where the text may not end, if it `forces`. Half of `length` is a text, too."""

    salt: int
    length: int
    forces: bool = True

    @classmethod
    def of(cls, params: SamplingParams) -> "Toy | None":
        asked = params.constraint
        if asked is None:
            return None
        salt, length, forces = map(int, asked.value.split(":"))
        return cls(salt, length, bool(forces))

    @property
    def constraint(self) -> Constraint:
        return Constraint("regex", f"{self.salt}:{self.length}:{int(self.forces)}")

    def allowed(self, tokens: Sequence[int], stops: frozenset[int], vocab_size: int) -> list[int]:
        """Ids that may follow these outputs, in order."""
        sum_of = self.salt + 7 * sum(tokens) + len(tokens)
        may_end = len(tokens) >= self.length // 2 and bool(stops)
        free = [token for token in range(vocab_size) if token not in stops and (31 * token + sum_of) % 3 == 0]
        if self.forces and sum_of % 5 < 3 and not may_end:
            return free[sum_of % len(free) :][:1]
        return sorted([*free, *stops]) if may_end else free


class ToyMatcher:
    def __init__(self, toy: Toy, stops: frozenset[int], vocab_size: int, tokens: Sequence[int] = ()):
        self.toy, self.stops, self.vocab_size, self.tokens = toy, stops, vocab_size, list(tokens)

    @property
    def ended(self) -> bool:
        return len(self.tokens) == self.toy.length

    def allowed(self) -> list[int]:
        return self.toy.allowed(self.tokens, self.stops, self.vocab_size)

    def forced(self) -> list[int]:
        run: list[int] = []
        while len(self.tokens) + len(run) < self.toy.length - 1:
            legal = self.toy.allowed([*self.tokens, *run], self.stops, self.vocab_size)
            if len(legal) > 1:
                break
            run += legal
        return run

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if token not in self.allowed():
                raise MatcherError(f"{token} was drawn, and may not follow")
            self.tokens.append(token)

    def copy(self) -> "ToyMatcher":
        return ToyMatcher(self.toy, self.stops, self.vocab_size, self.tokens)


class ToyConstraints:
    """fails: numbers of tokens at which a mask cannot be filled."""

    def __init__(self, vocab_size: int, fails: frozenset[int] = frozenset()):
        self.vocab_size = vocab_size
        self.fails = fails
        self.filled = 0

    def close(self) -> None:
        """Nothing was started."""

    def stats(self) -> ConstraintStats:
        return ConstraintStats(grammars_compiled=3, grammar_seconds=1.5)

    def is_kept(self, params: SamplingParams, stop_ids: frozenset[int]) -> bool:
        return False

    def compile(self, params: SamplingParams, stop_ids: frozenset[int]) -> ToyMatcher:
        toy = Toy.of(params)
        assert toy is not None
        if not toy.length:
            raise ParameterError("structured_outputs", "a text of no tokens")
        return ToyMatcher(toy, stop_ids, self.vocab_size)

    def fill(self, matchers: Sequence[Matcher], rows: np.ndarray) -> dict[int, str]:
        errors = {}
        for number, matcher in enumerate(matchers):
            assert isinstance(matcher, ToyMatcher)
            self.filled += 1
            if len(matcher.tokens) in self.fails:
                errors[number] = "the toy is broken"
                continue
            for token in matcher.allowed():
                rows[number, token // WORD_BITS] |= np.uint32(1 << token % WORD_BITS).view(np.int32)
        return errors
