"""The serving workload: prompts of random ids and lengths, outputs of set lengths; after nano-vllm's benchmark."""

import random
from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.device.forms import Form

TEMPERATURE = 0.6
_HIGHEST_ID = 10_000


class Job(NamedTuple):
    """A prompt, and how many tokens to make."""

    prompt: list[int]
    output: int


def make_jobs(form: Form, count: int, seed: int = 0) -> list[Job]:
    """Return equal jobs for every engine. Ids are from 1, since 0 ends a text."""
    draw = random.Random(seed)
    highest = min(_HIGHEST_ID, form.small["vocab_size"] - 1)
    prompts = [
        [draw.randint(1, highest) for _ in range(draw.randint(form.shortest, form.longest))] for _ in range(count)
    ]
    return [Job(prompt, draw.randint(form.shortest, form.longest)) for prompt in prompts]


def check_lengths(jobs: Iterable[Job], made: Iterable[int]) -> None:
    """Raises RuntimeError where an engine made more or fewer tokens than were asked for."""
    for job, tokens in zip(jobs, made, strict=True):
        if tokens != job.output:
            raise RuntimeError(f"{tokens} tokens were made where {job.output} were asked for")


def rates(jobs: list[Job], seconds: float) -> dict[str, float]:
    """Tokens in and out, seconds, and output tokens and requests a second."""
    tokens = sum(job.output for job in jobs)
    return {
        "requests": len(jobs),
        "prompt_tokens": sum(len(job.prompt) for job in jobs),
        "output_tokens": tokens,
        "seconds": round(seconds, 4),
        "output_tokens_per_s": round(tokens / seconds, 2),
        "requests_per_s": round(len(jobs) / seconds, 3),
    }
