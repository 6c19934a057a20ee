"""The engine's view of constrained decoding: the protocols of compilers and matchers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from jaxinfer.engine.series import Series, counter, gauge, shown
from jaxinfer.sampling import SamplingParams


class MatcherError(Exception):
    """A matcher cannot go on; its text says why, for whoever sent the request."""


class Matcher(Protocol):
    """A sequence's state in its grammar, from which the next token may be drawn. It has seen the collected tokens of
    its sequence, and no others: steps that fail, and slots that are lost, change nothing."""

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


_GRAMMARS = Series("counter", "jaxinfer:grammars", "Grammars that requests asked for: kept from an earlier request, "
                   "compiled, or refused.", ("result",))  # fmt: skip


@dataclass(frozen=True)
class ConstraintStats:
    """Statistics of compiled grammars. grammar_seconds: of all threads together."""

    grammars_cached: int = shown(_GRAMMARS.at("cached"))
    grammars_compiled: int = shown(_GRAMMARS.at("compiled"))
    grammars_refused: int = shown(_GRAMMARS.at("refused"))
    grammar_seconds: float = counter("jaxinfer:grammar_compile_seconds", "Time spent compiling grammars, refused ones "
                                     "included; beside the engine's thread.")  # fmt: skip
    grammars_kept: int = gauge("jaxinfer:grammars_kept", "Compiled grammars that are kept.")
    grammar_bytes: int = gauge(
        "jaxinfer:grammars_kept_bytes", "Memory that they take, as it was measured when they were compiled."
    )


class Constraints(Protocol):
    """Makes matchers, and fills their masks."""

    def compile(self, params: SamplingParams, stop_ids: frozenset[int]) -> Matcher:
        """Compile the matcher of a request that asks for one. stop_ids: ids that end the output, and may be drawn where
        it may end. May take a while; safe in any thread. Raises ParameterError that says what is refused."""
        ...

    def is_kept(self, params: SamplingParams, stop_ids: frozenset[int]) -> bool:
        """Return whether `compile` would find the request's grammar in the cache. Returns at once; safe in any
        thread."""
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
