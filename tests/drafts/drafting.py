"""Engines that draft, over a tiny model, and what is asked of them."""

from collections.abc import Collection
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.step.packed import PackedStep
from jaxinfer.engine.step.plan import StepKind
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.step.draft_model import with_draft
from jaxinfer.sampling import SamplingParams
from jaxinfer.speculation import Method, Speculation
from tests.engine.outputs import Outputs
from tests.models.eagle3_folder import tiny_head
from tests.runner.tiny import near_model, random_prompt, tiny_model, tiny_shapes

EOS = (9,)


def standing() -> int:
    """With such a clock drafting stays on."""
    return 0


def made(tokens: int, method: Method = "ngram", *, lazy: bool = True, **sizes: Any) -> JaxRunner:
    """tokens: drafts of a row; 0 for none. lazy: programs are compiled as they are needed."""
    model = tiny_model((None, 12))
    drafting = Speculation(tokens, 1, 3, method) if tokens else None
    if method == "draft_model":
        model = with_draft(model, near_model(model))
    elif method == "eagle3":
        model = with_draft(model, tiny_head(model))
    shapes = tiny_shapes(model, **{"max_num_seqs": 4, "max_num_batched_tokens": 16, **sizes}, drafting=drafting)
    runner = JaxRunner(model, shapes)
    runner.warm_up(when="lazy" if lazy else "all")
    return runner


@cache
def runner(tokens: int, method: Method = "ngram", **sizes: Any) -> JaxRunner:
    """Made once. Those of most tests, with three drafts, compile nothing once they are ready."""
    return made(tokens, method, lazy=tokens != 3 or bool(sizes), **sizes)


def repeating(seed: int, count: int) -> list[int]:
    """A prompt that says a few tokens over and over."""
    return (random_prompt(np.random.default_rng(seed), 3) * count)[:count]


def params(**changes) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 30, "temperature": 1.0, "seed": 5, "ignore_eos": True, **changes})


PROMPT = random_prompt(np.random.default_rng(4), 40)


def drawn(seed: int, **changes) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "ignore_eos": True, "max_tokens": 24, "seed": seed, **changes})


REQUESTS = (
    GenerateRequest("long", PROMPT, drawn(1)),
    GenerateRequest("hit", PROMPT[:30], drawn(2)),
    GenerateRequest("forks", PROMPT[5:12], drawn(3, n=3)),
    GenerateRequest("penalties", PROMPT[:9], drawn(4, frequency_penalty=0.7, top_p=0.9)),
    GenerateRequest("greedy", PROMPT[:3], drawn(5, temperature=0.0)),
)
"""A prompt in chunks, a hit in the prefix cache, forks, and parameters that drafts must heed."""

WITH_ONE_TOKEN = (*REQUESTS, GenerateRequest("one", PROMPT[:1], drawn(6, temperature=0.0)))
"""These and a prompt of one token."""


def fail_drafting_steps(monkeypatch: pytest.MonkeyPatch, device: JaxRunner, numbers: Collection[int]) -> None:
    """Has these of the steps that draft, counted from 1, fail."""
    calls = []

    def run(step: PackedStep, run: Any = device.run) -> Any:
        if step.kind is StepKind.SPECULATE:
            calls.append(step)
            if len(calls) in numbers:
                raise RuntimeError("the device is gone")
        return run(step)

    monkeypatch.setattr(device, "run", run)


def draft_in_turns(core: EngineCore, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has two steps draft, one of them less, and so many after them not, over and over."""
    policy = core.scheduler.drafts
    assert policy is not None
    asked = cycle([policy.tokens, *[0] * steps, (policy.tokens + 1) // 2])
    monkeypatch.setattr(policy, "drafts", lambda *_: next(asked))


def check_equal(plain: Outputs, found: Outputs) -> None:
    assert plain.keys() == found.keys()
    for key, output in plain.items():
        told = found[key]
        assert (told.tokens, told.reason, told.stopped_by) == (output.tokens, output.reason, output.stopped_by), key
        assert len(told.logprobs) == len(output.logprobs)
        for one, other in zip(told.logprobs, output.logprobs, strict=True):
            assert (one.token_id, one.rank) == (other.token_id, other.rank)
            assert abs(one.logprob - other.logprob) < 1e-4
