"""Statistics of a generation in the terminal: tokens, times and rates of prefill and decode."""

import time
from collections.abc import Callable
from typing import NamedTuple

from jaxinfer.engine.device.runner import LatePrograms
from jaxinfer.text import ChoiceDelta


class _Moment(NamedTuple):
    """A time, seconds, and the programs and seconds of `LatePrograms` by then."""

    time: float
    programs: int
    making: float

    def since(self, before: "_Moment") -> float:
        """Seconds between two moments without those in which programs were made."""
        return self.time - before.time - (self.making - before.making)


class GenerationClock:
    """Measures one generation from its making on, but for the programs that are made on the way.

    prompt_tokens: length of the prompt. late: asked for the programs made so far.
    """

    def __init__(self, prompt_tokens: int, late: Callable[[], LatePrograms]):
        self._prompt_tokens = prompt_tokens
        self._late = late
        self._start = self._first = self._last = self._now()
        self._tokens: dict[int, int] = {}
        self._cached = 0

    def push(self, delta: ChoiceDelta) -> None:
        """A step has come back."""
        self._last = self._now()
        if not self._tokens:
            self._first = self._last
        self._cached = max(self._cached, delta.cached_tokens)
        self._tokens[delta.index] = self._tokens.get(delta.index, 0) + len(delta.token_ids)

    def line(self) -> str:
        """One line. Prefill is the time to the first token; its rate counts the tokens that were not cached.

        Decode is the time after it; its rate counts the tokens after the first of each choice.
        """
        made, choices = sum(self._tokens.values()), len(self._tokens)
        prefill, decode = self._first.since(self._start), self._last.since(self._first)
        computed = self._prompt_tokens - self._cached
        cached = f" ({self._cached} cached)" if self._cached else ""
        text = f"prompt: {self._prompt_tokens} tokens{cached}, {_seconds(prefill)}, {_rate(computed, prefill)}"
        text = f"{text} · output: {made} tokens, {_seconds(decode)}, {_rate(made - choices, decode)}"
        return text + self._programs()

    def _programs(self) -> str:
        count, seconds = self._last.programs - self._start.programs, self._last.making - self._start.making
        what = "1 program" if count == 1 else f"{count} programs"
        return f" · not counted: {what} prepared on the way, {_seconds(seconds)}" if count else ""

    def _now(self) -> _Moment:
        return _Moment(time.perf_counter(), *self._late())


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.1f} tokens/s" if tokens > 0 and seconds > 0 else "no rate"
