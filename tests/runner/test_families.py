"""The engine over the small model of every family: transformers' greedy tokens, with prefix hits, by both backends."""

import functools
from pathlib import Path

import numpy as np
import pytest

from jaxinfer.config import AttentionBackend
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.tuning.attention import choose_attention
from tests.models.goldens import FAMILIES, GOLDENS, load
from tests.runner.tiny import drive, greedy, make_core, tiny_shapes

BLOCK = 4


SMOKE = ("gemma3", "gpt_oss", "qwen3_moe", "cohere2")


def runner_of(folder: Path, backend: AttentionBackend) -> JaxRunner:
    model = load(folder)
    shapes = tiny_shapes(model, max_num_seqs=1, max_num_batched_tokens=8, blocks=60)
    runner = JaxRunner(choose_attention(model, shapes, backend, None), shapes)
    runner.warm_up(when="lazy")
    return runner


@functools.cache
def golden(family: str) -> tuple[list[int], list[int]]:
    """Its prompt and what follows it."""
    found = np.load(GOLDENS / family / "golden.npz")
    return found["prompt"].tolist(), found["greedy"].tolist()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "family", [name if name in SMOKE else pytest.param(name, marks=pytest.mark.long) for name in FAMILIES]
)
def test_greedy_tokens_with_prefix_hits(family: str) -> None:
    """The second request begins with all that the first one has left, but for its last tokens."""
    prompt, wanted = golden(family)
    core = make_core(runner_of(GOLDENS / family, "xla"))
    first = drive(core, [GenerateRequest("first", prompt, greedy(len(wanted)))])["first", 0]
    assert first.tokens == wanted
    longer = [*prompt, *wanted[:30]]
    second = drive(core, [GenerateRequest("second", longer, greedy(len(wanted) - 30))])["second", 0]
    assert second.tokens == wanted[30:]
    assert second.cached == (len(longer) - 1) // BLOCK * BLOCK


# One for each way of attending; scripts/sanity_check.py runs them all so.
ATTENDING = ("gemma2", "gpt_oss", "minimax_m2", "ministral3", "cohere2", "gpt2")


@pytest.mark.long
@pytest.mark.parametrize("family", ATTENDING)
def test_the_kernel_for_tpus_gives_the_same_tokens(family: str) -> None:
    prompt, wanted = golden(family)
    core = make_core(runner_of(GOLDENS / family, "mosaic_tpu"))
    found = drive(core, [GenerateRequest("first", prompt, greedy(6))])["first", 0]
    assert found.tokens == wanted[:6]
