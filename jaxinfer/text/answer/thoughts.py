"""Thoughts: the tags between which a model writes what it thinks before it answers."""

from collections.abc import Sequence
from typing import NamedTuple


class Thoughts(NamedTuple):
    """Tags of a thought."""

    begin: str
    end: str

    def opened_by(self, prompt: str, *, continued: bool = False) -> bool:
        """Return whether the model begins its answer inside of a thought. continued: the prompt ends with an unfinished
        message."""
        if continued:
            return prompt.rfind(self.begin) > prompt.rfind(self.end)
        return prompt.rstrip().endswith(self.begin)


THINK = Thoughts("<think>", "</think>")
"""Of Qwen3, DeepSeek-R1 and most others."""
MISTRAL = Thoughts("[THINK]", "[/THINK]")
SEED = Thoughts("<seed:think>", "</seed:think>")


def thoughts_of_template(template: str) -> Thoughts | None:
    """The tags that a chat template shows; None if it shows none that are known."""
    return next((tags for tags in (SEED, MISTRAL, THINK) if tags.end in template), None)


def thoughts_of_name(name: str) -> Thoughts:
    """The tags of a name."""
    return {"mistral": MISTRAL, "seed_oss": SEED}.get(name, THINK)


class ReasoningTokens:
    """Counts the tokens between a thought's tags, for tokenizers in which each of the two is one token."""

    def __init__(self, begin: int, end: int, *, thinking: bool = False):
        self.count = 0
        self._begin = begin
        self._end = end
        self._inside = thinking

    def push(self, token_ids: Sequence[int]) -> None:
        """Takes the answer's next tokens."""
        for token in token_ids:
            if token in (self._begin, self._end):
                self._inside = token == self._begin
            elif self._inside:
                self.count += 1
