"""Grammars: compiles what requests ask for, keeps it, and fills the masks of a step in threads of its own."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par

from jaxinfer.constraint import Constraint
from jaxinfer.engine.constraint import Matcher
from jaxinfer.engine.step.shapes import WORD_BITS
from jaxinfer.errors import ParameterError
from jaxinfer.grammar.matcher import GrammarMatcher, error_of
from jaxinfer.grammar.source import grammar_text
from jaxinfer.sampling import SamplingParams

_MOST_KEPT = 256
"""Compiled grammars."""


class Grammars:
    """Constraints by llguidance. tokenizer: a tokenizer.json, read when the first request needs it. vocab_size: the
    model's; ids that belong to no token are never legal. eos_ids: the model's.

    A grammar is compiled once, with a first mask, which takes longer than any later one; requests get copies.
    """

    def __init__(self, tokenizer: Path, vocab_size: int, eos_ids: Sequence[int]):
        self._file = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = list(eos_ids)
        self._executor = LLExecutor()
        self._kept: OrderedDict[Constraint, LLMatcher] = OrderedDict()
        self._known_ends: dict[frozenset[int], _Ends] = {}
        self._lock = threading.Lock()
        self._reading = threading.Lock()

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        with self._reading:  # a second of work, which two threads must not do both
            text = self._file.read_text(encoding="utf-8")
            found = LLTokenizer(text, eos_token=self._eos_ids or None)
            if found.vocab_size >= self._vocab_size:
                return found
            return LLTokenizer(text, n_vocab=self._vocab_size, eos_token=self._eos_ids or None)

    @cached_property
    def _words(self) -> int:
        """Of llguidance's masks: where the tokenizer knows more tokens than the model has, more than the model's."""
        return -(-self._tokenizer.vocab_size // WORD_BITS)

    @cached_property
    def _model_ids(self) -> np.ndarray:
        return _bits(range(self._vocab_size), self._words)

    def check(self, params: SamplingParams) -> None:
        """Nothing is refused before it is compiled."""

    def compile(self, params: SamplingParams, stop_ids: frozenset[int]) -> GrammarMatcher:
        assert params.structured_outputs is not None
        constraint = params.structured_outputs
        alike = replace(constraint, after=(), thought=None)
        with self._lock:
            found = self._kept.get(alike)
            if found is not None:
                self._kept.move_to_end(alike)
        if found is None:
            found = self._compiled(alike)
            self._keep(alike, found)
        return GrammarMatcher(found.deep_copy(), stop_ids, constraint.after, constraint.thought)

    def fill(self, matchers: Sequence[Matcher], rows: np.ndarray) -> dict[int, str]:
        wide = np.zeros((len(matchers), self._words), np.int32)
        own = [(number, matcher) for number, matcher in enumerate(matchers) if isinstance(matcher, GrammarMatcher)]
        begun = [(number, matcher) for number, matcher in own if matcher.begun]
        wide[[number for number, matcher in own if not matcher.begun]] = self._model_ids
        asked = [(matcher.grammar, number) for number, matcher in begun]
        if asked:
            fill_next_token_bitmask_par(self._executor, asked, wide)
        errors = {}
        for number, matcher in begun:
            if matcher.grammar.is_error():
                errors[number] = f"the grammar cannot go on: {error_of(matcher.grammar)}"
                continue
            self._set_ends(matcher, wide[number])
            if matcher.thought is not None:
                wide[number] |= _bits([matcher.thought], self._words)
            if not wide[number].any():
                errors[number] = "the grammar allows no token but ones that end the text, which it does not allow yet"
        wide &= self._model_ids
        rows[:] = wide[:, : rows.shape[1]]
        return errors

    def _set_ends(self, matcher: GrammarMatcher, row: np.ndarray) -> None:
        """Where the text may end, all that ends it is legal, and nothing of that elsewhere: not even a token that the
        grammar takes for text."""
        ends = self._ends(matcher.stop_ids)
        row &= ends.others
        if matcher.grammar.is_accepting():
            row |= ends.legal

    def _ends(self, stop_ids: frozenset[int]) -> "_Ends":
        if stop_ids not in self._known_ends:
            legal = _bits(stop_ids, self._words)
            self._known_ends[stop_ids] = _Ends(legal, ~legal & ~_bits(self._tokenizer.eos_tokens, self._words))
            while len(self._known_ends) > _MOST_KEPT:
                del self._known_ends[next(iter(self._known_ends))]
        return self._known_ends[stop_ids]

    def _compiled(self, constraint: Constraint) -> LLMatcher:
        found = LLMatcher(self._tokenizer, grammar_text(constraint), log_level=0, limits=_LIMITS)
        if not found.is_error():
            fill_next_token_bitmask(found, np.zeros((1, self._words), np.int32))
        if found.is_error():
            raise ParameterError(constraint.param, f"this {constraint.kind} is refused: {error_of(found)}")
        return found

    def _keep(self, constraint: Constraint, found: LLMatcher) -> None:
        with self._lock:
            self._kept[constraint] = found
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)


class _Ends(NamedTuple):
    """Masks, int32 [words]. legal: what ends a text. others: all ids but these and the model's own ends."""

    legal: np.ndarray
    others: np.ndarray


def _bits(ids: Sequence[int] | frozenset[int] | range, words: int) -> np.ndarray:
    """A mask of these ids, int32 [words]."""
    bits = np.zeros(words * WORD_BITS, np.uint8)
    bits[[id for id in ids if id < len(bits)]] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""Some 20 ms to begin with, and 15 ms and 100 MB for a step; its own defaults but for states and sizes."""
