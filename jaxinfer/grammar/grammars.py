"""Grammars: compiles what requests ask for, keeps it, and fills the masks of a step in threads of its own."""

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask_par

from jaxinfer.constraint import Constraint
from jaxinfer.engine.constraint import ConstraintStats, Matcher
from jaxinfer.engine.step.shapes import WORD_BITS
from jaxinfer.errors import ParameterError
from jaxinfer.grammar.bits import bits_of
from jaxinfer.grammar.exclusion import Exclusion
from jaxinfer.grammar.matcher import Ends, GrammarMatcher, error_of, first_line, forced_by
from jaxinfer.grammar.numbers import NumberBounds
from jaxinfer.grammar.reading import LIMITS, Tokenizers, read_tokenizers, special_ids
from jaxinfer.grammar.refusals import Refusals
from jaxinfer.grammar.schema.places import place_of
from jaxinfer.grammar.source import excluded_from_grammars, parts_of, writes_json
from jaxinfer.grammar.thought import ThoughtEnd
from jaxinfer.grammar.trial import Trial
from jaxinfer.sampling import SamplingParams

_MOST_KEPT, _MOST_BYTES = 256, 512 << 20
"""Compiled grammars, and bytes that all of them take."""
_GROWTH = 2
"""Bytes that a grammar may come to take for each byte when it is compiled: its lexer learns while it is used, a
quarter in a few hundred texts, and memory is in pieces, a sixth more."""
_BLAME_SECONDS = 2.0
"""From the start of a trial: how long the part that is to blame is looked for."""


class Grammars:
    """Constraints by llguidance. tokenizer: a tokenizer.json, read at once in another thread: that takes a second, in
    which no thread would answer anybody. vocab_size: the model's; ids that belong to no token are never legal. eos_ids:
    the model's.

    A grammar is made and tried out in another process first, which it may end; then it is compiled here, once, with a
    first mask, which takes longer than any later one; requests get copies. Nothing of a constraint is rewritten here.
    """

    def __init__(self, tokenizer: Path, vocab_size: int, eos_ids: Sequence[int]):
        self._settings = {"tokenizer": str(tokenizer), "vocab_size": vocab_size, "eos_ids": list(eos_ids)}
        self._vocab_size = vocab_size
        self._executor = LLExecutor()
        # Of its own: a first mask may take seconds, and steps wait for no such.
        self._compiler = LLExecutor(num_threads=1)
        self._kept: OrderedDict[Asked, _Kept] = OrderedDict()
        self._refusals = Refusals()
        self._thought_ends: dict[str, ThoughtEnd] = {}
        self._exclusions: dict[tuple[str, ...], Exclusion] = {}
        self._lock = threading.Lock()
        reader = ThreadPoolExecutor(1, thread_name_prefix="jaxinfer-tokenizer")
        self._read = reader.submit(read_tokenizers, **self._settings)
        reader.shutdown(wait=False)
        self._idle: list[Trial] = []
        self._closed = False
        self._counts = ConstraintStats()

    def wait_ready(self) -> None:
        """Wait until the tokenizer is read, be it with an error, which the first constraint meets."""
        wait([self._read])

    @property
    def _tokenizers(self) -> Tokenizers:
        return self._read.result()

    @property
    def _tokenizer(self) -> LLTokenizer:
        return self._tokenizers.guided

    @cached_property
    def _words(self) -> int:
        """Words of llguidance's masks: more than the model's if the tokenizer knows more tokens than the model has."""
        return -(-self._tokenizer.vocab_size // WORD_BITS)

    @cached_property
    def _model_ids(self) -> np.ndarray:
        """Mask of the ids that the model has."""
        return bits_of(range(self._vocab_size), self._words)

    @cached_property
    def _token_bytes(self) -> list[bytes]:
        return [self._tokenizer.decode_bytes([id]) for id in range(self._tokenizer.vocab_size)]

    @cached_property
    def _numbers(self) -> NumberBounds:
        return NumberBounds(self._token_bytes, self._words, frozenset(self._special_ids.values()))

    def _exclusion(self, strings: tuple[str, ...]) -> Exclusion | None:
        if not strings:
            return None
        if strings not in self._exclusions:
            encoded = [each.encode() for each in strings]
            self._exclusions[strings] = Exclusion(encoded, self._token_bytes, self._words)
        return self._exclusions[strings]

    @cached_property
    def _special_ids(self) -> dict[str, int]:
        return special_ids(self._tokenizers)

    @cached_property
    def _free_ids(self) -> np.ndarray:
        """Mask of the ids that are tokens and do not end a text."""
        size = self._tokenizers.own.get_vocab_size()
        known = bits_of(range(min(size, self._vocab_size)), self._words)
        return known & ~bits_of(self._tokenizer.eos_tokens, self._words)

    def compile(self, params: SamplingParams, stop_ids: frozenset[int]) -> GrammarMatcher:
        assert params.constraint is not None
        constraint, alike = params.constraint, self._asked(params, stop_ids)
        with self._lock:
            kept = self._kept.get(alike)
            if kept is not None:
                self._kept.move_to_end(alike)
                self._counts = replace(self._counts, grammars_cached=self._counts.grammars_cached + 1)
        if kept is None:
            kept = self._compiled_anew(alike)
        legal = bits_of(stop_ids, self._words)
        ends = Ends(legal, self._model_ids & ~legal & ~bits_of(self._tokenizer.eos_tokens, self._words))
        return GrammarMatcher(
            kept.grammar.deep_copy(),
            ends,
            partial(self._forget, alike, kept),
            self._thought_end(constraint.after) if constraint.after else None,
            constraint.thought,
            kept.forced,
            self._numbers if writes_json(constraint) else None,
            self._exclusion(excluded_from_grammars(constraint)),
        )

    def _compiled_anew(self, asked: "Asked") -> "_Kept":
        with self._lock:
            refusal = self._refusals.find(asked.constraint)
            if refusal is not None:
                self._counts = replace(self._counts, grammars_refused=self._counts.grammars_refused + 1)
                raise refusal
        try:
            with self._counting():
                kept = self._compiled(asked)
        except ParameterError as error:
            with self._lock:
                self._refusals.add(asked.constraint, error)
            raise
        self._keep(asked, kept)
        return kept

    def is_kept(self, params: SamplingParams, stop_ids: frozenset[int]) -> bool:
        constraint = params.constraint
        if (
            not self._read.done()
            or constraint is None
            or (constraint.after and constraint.after not in self._thought_ends)
        ):
            return False
        asked = self._asked(params, stop_ids)
        return asked in self._kept or self._refusals.find(asked.constraint) is not None

    def _asked(self, params: SamplingParams, stop_ids: frozenset[int]) -> "Asked":
        assert params.constraint is not None
        forces = not params.has_token_rules and not self._has_text(stop_ids)
        return Asked(replace(params.constraint, after="", thought=None), forces)

    def _has_text(self, stop_ids: frozenset[int]) -> bool:
        """Return whether one of the ids may be part of a text, which then needs another spelling than the tokenizer's
        own."""
        guided = self._tokenizer
        others = stop_ids.difference(guided.eos_tokens)
        return any(each < guided.vocab_size and not guided.is_special_token(each) for each in others)

    def stats(self) -> ConstraintStats:
        with self._lock:
            kept = sum(each.bytes for each in self._kept.values())
            return replace(self._counts, grammars_kept=len(self._kept), grammar_bytes=kept)

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Compiles one within."""
        begun, compiled, refused = time.perf_counter(), 0, 0
        try:
            yield
            compiled = 1
        except ParameterError:
            refused = 1
            raise
        finally:
            with self._lock:
                counts = self._counts
                self._counts = replace(
                    counts,
                    grammars_compiled=counts.grammars_compiled + compiled,
                    grammars_refused=counts.grammars_refused + refused,
                    grammar_seconds=counts.grammar_seconds + time.perf_counter() - begun,
                )

    def _thought_end(self, text: str) -> ThoughtEnd:
        if text not in self._thought_ends:
            read = self._tokenizers.own
            special = frozenset(id for id, token in read.get_added_tokens_decoder().items() if token.special)
            own = frozenset(read.encode(text, add_special_tokens=False).ids)
            self._thought_ends[text] = ThoughtEnd(text, self._token_bytes, special - own, self._free_ids)
        return self._thought_ends[text]

    def close(self) -> None:
        with self._lock:
            self._closed, idle, self._idle = True, self._idle, []
        for trial in idle:
            trial.close()

    def fill(self, matchers: Sequence[Matcher], rows: np.ndarray) -> dict[int, str]:
        wide, asked = np.zeros((len(matchers), self._words), np.int32), list[tuple[LLMatcher, int]]()
        for number, matcher in enumerate(matchers):
            assert isinstance(matcher, GrammarMatcher)
            if forced := matcher.forced():
                wide[number, forced[0] // WORD_BITS] = bits_of([forced[0] % WORD_BITS], 1)[0]
            elif matcher.begun:
                asked.append((matcher.grammar, number))
            else:
                wide[number] = matcher.ends.others & matcher.thought_mask()
        if asked:
            fill_next_token_bitmask_par(self._executor, asked, wide)
        errors = {number: error for _, number in asked if (error := self._finish(matchers[number], wide[number]))}
        wide &= self._model_ids
        rows[:] = wide[:, : rows.shape[1]]
        return errors

    def _finish(self, matcher: Matcher, row: np.ndarray) -> str | None:
        """Restrict the mask that llguidance has filled to legal tokens; return an error if none is left. Where the text
        may end, all ids that end it are legal; elsewhere none of them is, not even a token that the grammar takes for
        text."""
        assert isinstance(matcher, GrammarMatcher)
        if matcher.grammar.is_error():
            matcher.on_error()
            return f"the grammar cannot go on: {error_of(matcher.grammar)}"
        row &= matcher.ends.others
        if matcher.grammar.is_accepting():
            row |= matcher.ends.legal
        if matcher.thought is not None:
            row |= bits_of([matcher.thought], self._words)
        matcher.restrict(row)
        return (
            None if row.any() else "the grammar allows no token but ones that end the text, which it does not allow yet"
        )

    def _compiled(self, asked: "Asked") -> "_Kept":
        constraint = asked.constraint
        with self._trial() as trial:
            begun = time.monotonic()
            tried = trial.run(constraint, forces=asked.forces, calls=self._calls_begin(constraint))
            if tried.error:
                until = begun + _BLAME_SECONDS
                self._try_parts(trial, constraint, until)
                raise self._blamed(trial, constraint, first_line(tried.error), until)
        found = LLMatcher(self._tokenizer, tried.text, log_level=0, limits=LIMITS)
        mask = np.zeros((1, self._words), np.int32)
        if not found.is_error():
            fill_next_token_bitmask_par(self._compiler, [(found, 0)], mask)
        if found.is_error():
            raise _refused(constraint, error_of(found))
        if not (mask & ~bits_of(self._tokenizer.eos_tokens, self._words)).any():
            raise _refused(constraint, "no text but an empty one fits it")
        texts = 2 * (len(tried.text) + len(constraint.value))
        return _Kept(found, _GROWTH * tried.bytes + texts, forced_by(found))

    def _calls_begin(self, constraint: Constraint) -> list[list[int]]:
        """Tokens of what no grammar of a constraint may begin with."""
        exclusion = self._exclusion(excluded_from_grammars(constraint))
        return [] if exclusion is None else [self._letters(begin) for begin in exclusion.begins()]

    def _letters(self, text: bytes) -> list[int]:
        """A text, each byte as a token of its own: the tokenizer would write a tag as one that is no text."""
        return [self._token_bytes.index(bytes([letter])) for letter in text]

    def _try_parts(self, trial: Trial, constraint: Constraint, until: float) -> None:
        """Raises for the part that is to blame, where one is found in time."""
        for part in parts_of(constraint):
            if time.monotonic() > until:
                return
            if error := trial.run(part).error:
                raise self._blamed(trial, part, first_line(error), until)

    def _blamed(self, trial: Trial, constraint: Constraint, error: str, until: float) -> ParameterError:
        """Return the error to raise if a trial has refused a constraint; for a schema it names the place that caused
        it."""
        if constraint.kind != "json_schema":
            return _refused(constraint, error)

        def is_to_blame(schema: Any) -> bool:
            if time.monotonic() > until:
                return False
            try:
                return first_line(trial.run(replace(constraint, value=json.dumps(schema))).error) == error
            except ParameterError:
                return False

        place = place_of(json.loads(constraint.value), is_to_blame)
        return _refused(constraint, f"{error} (at {place})")

    @contextmanager
    def _trial(self) -> Iterator[Trial]:
        """One that no other thread has."""
        with self._lock:
            trial = self._idle.pop() if self._idle else Trial(self._settings)
        try:
            yield trial
        finally:
            with self._lock:
                if self._closed:
                    trial.close()
                else:
                    self._idle.append(trial)

    def _keep(self, asked: "Asked", kept: "_Kept") -> None:
        with self._lock:
            self._kept[asked] = kept
            while len(self._kept) > _MOST_KEPT or sum(each.bytes for each in self._kept.values()) > _MOST_BYTES:
                self._kept.popitem(last=False)

    def _forget(self, asked: "Asked", kept: "_Kept") -> None:
        """Copies share what a lexer has learnt: where that was too much for one of them, it is for all."""
        with self._lock:
            if self._kept.get(asked) is kept:
                del self._kept[asked]


def _refused(constraint: Constraint, reason: str) -> ParameterError:
    return ParameterError(constraint.param, f"this {constraint.kind} is refused: {reason}")


class Asked(NamedTuple):
    """Cache key of a grammar. forces: of source.grammar_text."""

    constraint: Constraint
    forces: bool = True


class _Kept(NamedTuple):
    """A grammar that requests get copies of, the bytes that it may take, and the tokens that its texts begin with."""

    grammar: LLMatcher
    bytes: int
    forced: Sequence[int]
