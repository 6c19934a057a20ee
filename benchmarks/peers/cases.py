"""Workload of every engine: prompts of random ids, outputs of set lengths."""

import random
from dataclasses import dataclass
from typing import NamedTuple


class Ask(NamedTuple):
    """A prompt, and how many tokens to make."""

    prompt: list[int]
    output: int


@dataclass(frozen=True)
class Case:
    """model: `smollm2`, `qwen3` or `stories`. at_once: requests in flight. prompts, outputs: shortest and longest,
    tokens. prefix: tokens that all prompts of a run begin with."""

    name: str
    model: str
    requests: int
    at_once: int
    prompts: tuple[int, int]
    outputs: tuple[int, int]
    prefix: int = 0

    def asks(self, vocabulary: int, seed: int) -> list[Ask]:
        """Other prompts for every seed, so that no engine remembers those of the run before."""
        draw = random.Random(f"{self.name} {seed}")

        def ids(count: int) -> list[int]:
            return [draw.randrange(3, vocabulary) for _ in range(count)]

        start = ids(self.prefix)
        return [
            Ask(start + ids(draw.randint(*self.prompts)), draw.randint(*self.outputs)) for _ in range(self.requests)
        ]


FULL = (
    Case("one stream", "smollm2", 1, 1, (128, 128), (128, 128)),
    Case("8 at once", "smollm2", 16, 8, (64, 256), (48, 96)),
    Case("32 at once", "smollm2", 32, 32, (64, 256), (48, 96)),
    Case("shared prefix", "smollm2", 16, 8, (16, 48), (48, 80), prefix=512),
    Case("first of 128", "smollm2", 1, 1, (128, 128), (2, 2)),
    Case("first of 2048", "smollm2", 1, 1, (2048, 2048), (2, 2)),
    Case("0.6B one stream", "qwen3", 1, 1, (128, 128), (64, 64)),
    Case("0.6B 4 at once", "qwen3", 4, 4, (64, 128), (32, 64)),
    Case("stories", "stories", 64, 32, (32, 128), (64, 128)),
)
SMALL = (
    Case("one stream", "smollm2", 1, 1, (16, 16), (16, 16)),
    Case("8 at once", "smollm2", 16, 8, (16, 32), (16, 32)),
    Case("shared prefix", "smollm2", 8, 8, (8, 16), (8, 16), prefix=128),
)
