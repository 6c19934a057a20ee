"""Token rules: `allowed_token_ids` and `bad_words` of a request, alone or beside a grammar."""

from collections.abc import Iterable, Sequence

import numpy as np

from jaxinfer.engine.constraint import Matcher
from jaxinfer.engine.step.shapes import WORD_BITS
from jaxinfer.errors import ParameterError
from jaxinfer.sampling import SamplingParams

Tokens = tuple[int, ...]


class TokenRules:
    """Rules of a request, which are equal for all of its sequences. Masks are int32 [words], as `Constraints.fill`
    writes them. Raises ParameterError if no token may ever be drawn.

    longest: number of the output's last tokens that the rules need to know. param: the field that errors are of.
    """

    def __init__(self, params: SamplingParams, stop_ids: frozenset[int], vocab_size: int):
        bad = params.bad_token_ids
        bad_field = "bad_words" if params.bad_words else "bad_token_ids"
        fields = {"allowed_token_ids": params.allowed_token_ids, bad_field: bad}
        self._names = [name for name, value in fields.items() if value]
        grammar = params.constraint
        self._others = [] if grammar is None else [grammar.param.partition(".")[0]]
        self.param = self._names[0] if self._names else None
        self._min_tokens = params.min_tokens
        self.longest = max((len(tokens) for tokens in bad), default=1) - 1
        allowed = np.zeros(-(-vocab_size // WORD_BITS) * WORD_BITS, bool)
        allowed[np.array(params.allowed_token_ids, np.int64) if params.allowed_token_ids else slice(vocab_size)] = True
        allowed[[tokens[0] for tokens in bad if len(tokens) == 1]] = False
        self._always = _packed(allowed)
        allowed[list(stop_ids)] = False
        self._before_min_tokens = _packed(allowed)
        self._after: dict[int, list[tuple[Tokens, int]]] = {}
        for *before, last in filter(lambda tokens: len(tokens) > 1, bad):
            self._after.setdefault(before[-1], []).append((tuple(before), last))
        if not self._always.any():
            raise ParameterError(self._names[-1], f"{_joined(self._names)} leave no token that may be drawn")

    def mask(self, recent: Tokens, generated: int) -> np.ndarray:
        """After outputs that end with `recent`, `longest` tokens or all of them. generated: how many there are. Not to
        be written to."""
        base = self._before_min_tokens if generated < self._min_tokens else self._always
        ends = self._after.get(recent[-1], ()) if recent else ()
        banned = [last for before, last in ends if recent[-len(before) :] == before]
        return _without(base, banned) if banned else base

    def error(self, generated: int) -> str:
        """Says that nothing is left to draw, by the fields that have a say."""
        early = ["min_tokens"] if generated < self._min_tokens else []
        return f"no token is left that may be drawn next, by {_joined([*self._names, *self._others, *early])}"


class RuledMatcher:
    """A Matcher of a request that has rules. inner: of what else the request asks for; None: of nothing."""

    def __init__(self, rules: TokenRules, inner: Matcher | None = None, recent: Tokens = (), generated: int = 0):
        self.rules = rules
        self.inner = inner
        self._recent = recent
        self._generated = generated

    @property
    def ended(self) -> bool:
        return self.inner is not None and self.inner.ended

    def accept(self, tokens: Sequence[int]) -> None:
        self._generated += len(tokens)
        if self.rules.longest:
            self._recent = (*self._recent, *tokens)[-self.rules.longest :]
        if self.inner is not None:
            self.inner.accept(tokens)

    def forced(self) -> Sequence[int]:
        """Nothing: rules may forbid the tokens that a grammar forces."""
        return ()

    def copy(self) -> "RuledMatcher":
        inner = None if self.inner is None else self.inner.copy()
        return RuledMatcher(self.rules, inner, self._recent, self._generated)

    def restrict(self, row: np.ndarray) -> str | None:
        """Takes out of a mask, int32 [words], what the rules forbid now. Returns an error where nothing is left."""
        row &= self.rules.mask(self._recent, self._generated)
        return None if row.any() else self.rules.error(self._generated)


def _packed(allowed: np.ndarray) -> np.ndarray:
    """int32 [words] of bool [32 · words]."""
    return np.packbits(allowed, bitorder="little").view(np.int32)


def _without(mask: np.ndarray, banned: Iterable[int]) -> np.ndarray:
    words = mask.view(np.uint32).copy()
    for token in banned:
        words[token // WORD_BITS] &= ~np.uint32(1 << token % WORD_BITS)
    return words.view(np.int32)


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
