"""What constrained sequences may say, as the engine knows it: who compiles it, and who keeps to it."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from jaxinfer.sampling import SamplingParams


class MatcherError(Exception):
    """A matcher cannot go on; its text says why, for whoever sent the request."""


class Matcher(Protocol):
    """Which token a sequence may draw next. It has seen the tokens of its sequence that were collected, and no other:
    steps that fail, and slots that are lost, change nothing."""

    @property
    def ended(self) -> bool:
        """True where nothing but an end may follow."""
        ...

    def accept(self, tokens: Sequence[int]) -> None:
        """Takes the sequence's next tokens; none of them is one that ends it. Raises MatcherError."""
        ...

    def forced(self) -> Sequence[int]:
        """The next tokens where there is no choice, in the tokenizer's own spelling, but none after which nothing but
        an end may follow; empty where there is a choice. What is told once stays so: masks allow these tokens alone,
        until all of them have come."""
        ...

    def copy(self) -> "Matcher":
        """Another in the same state, for a sequence that forks."""
        ...


class ConstraintStats(NamedTuple):
    """What was compiled since the start; the names are EngineStats'.

    grammars_cached, grammars_compiled, grammars_refused: requests whose grammar was kept, was compiled, or cannot be.
    grammar_seconds: that compiling took, refused ones included, all threads together. grammars_kept,
    grammar_bytes: that are kept now, and what they take.
    """

    grammars_cached: int = 0
    grammars_compiled: int = 0
    grammars_refused: int = 0
    grammar_seconds: float = 0.0
    grammars_kept: int = 0
    grammar_bytes: int = 0


class Constraints(Protocol):
    """Makes matchers, and fills their masks."""

    def compile(self, params: SamplingParams, stop_ids: frozenset[int]) -> Matcher:
        """Of a request that asks for one. stop_ids: what ends it, and may be drawn where it may end. May take a while;
        safe in any thread. Raises ParameterError that says what is refused."""
        ...

    def is_kept(self, params: SamplingParams, stop_ids: frozenset[int]) -> bool:
        """Whether `compile` would find what this request asks for compiled. Returns at once; safe in any thread."""
        ...

    def fill(self, matchers: Sequence[Matcher], rows: np.ndarray) -> dict[int, str]:
        """Writes each matcher's mask into its row, int32 [n, words]: bit t % 32 of word t // 32 is set where token t
        may be drawn next. Returns errors by the matcher's number; those rows mean nothing."""
        ...

    def stats(self) -> ConstraintStats:
        """Totals since the start. Safe in any thread."""
        ...

    def close(self) -> None:
        """Ends what it has started. Safe while another thread compiles."""
        ...
