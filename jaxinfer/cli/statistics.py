"""What a generation in the terminal took: tokens, times and rates of prefill and decode."""

import time

from jaxinfer.text import ChoiceDelta


class GenerationClock:
    """Measures one generation from its making on. prompt_tokens: length of the prompt."""

    def __init__(self, prompt_tokens: int):
        self._prompt_tokens = prompt_tokens
        self._start = time.perf_counter()
        self._first = self._last = self._start
        self._tokens: dict[int, int] = {}
        self._cached = 0

    def push(self, delta: ChoiceDelta) -> None:
        """A step has come back."""
        self._last = time.perf_counter()
        if not self._tokens:
            self._first = self._last
        self._cached = max(self._cached, delta.cached_tokens)
        self._tokens[delta.index] = self._tokens.get(delta.index, 0) + len(delta.token_ids)

    def line(self) -> str:
        """One line. Prefill is the time to the first token; its rate counts the tokens that were not cached.

        Decode is the time after it; its rate counts the tokens after the first of each choice.
        """
        made, choices = sum(self._tokens.values()), len(self._tokens)
        prefill, decode = self._first - self._start, self._last - self._first
        computed = self._prompt_tokens - self._cached
        cached = f" ({self._cached} cached)" if self._cached else ""
        text = f"prompt: {self._prompt_tokens} tokens{cached}, {_seconds(prefill)}, {_rate(computed, prefill)}"
        return f"{text} · output: {made} tokens, {_seconds(decode)}, {_rate(made - choices, decode)}"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.1f} tokens/s" if tokens > 0 and seconds > 0 else "no rate"
