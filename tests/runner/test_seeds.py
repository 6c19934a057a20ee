"""A seed's promise: in float32 a request gives the same tokens whatever runs beside it."""

from collections.abc import Sequence

import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

WORDS = ["Hello", "what", "is", "the", "capital", "of", "France", "and", "how", "many", "apples", "do", "you", "have"]
REQUESTS, TOKENS = 32, 16


def prompts(rng: np.random.Generator, longest: int) -> list[str]:
    return [" ".join(rng.choice(WORDS, rng.integers(1, longest))) for _ in range(REQUESTS)]


def seeded(index: int) -> SamplingParams:
    temperature, top_p = (0.7, 1.0, 1.3)[index % 3], (1.0, 0.9)[index % 2]
    return SamplingParams(max_tokens=TOKENS, temperature=temperature, top_p=top_p, seed=index, ignore_eos=True)


def tokens_of(llm: LLM, texts: Sequence[str], params: Sequence[SamplingParams]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in llm.generate(list(texts), list(params))]


def test_a_seeded_request_gives_the_same_tokens_alone_and_beside_others() -> None:
    """The company differs in number, length and prefixes; with it the shapes of steps, and so how sums are rounded."""
    rng = np.random.default_rng(0)
    texts, params = prompts(rng, 30), [seeded(i) for i in range(REQUESTS)]
    others = prompts(rng, 60)
    unseeded = [SamplingParams(max_tokens=int(rng.integers(1, 40)), ignore_eos=True) for _ in others]
    llm = LLM("demo", dtype="float32", max_num_seqs=8, max_model_len=128, max_num_batched_tokens=64, compile="lazy")
    alone = [tokens_of(llm, [text], [own])[0] for text, own in zip(texts, params, strict=True)]
    together = tokens_of(llm, [*others, *texts], [*unseeded, *params])[len(others) :]
    llm.close()
    assert len({tuple(tokens) for tokens in alone}) == REQUESTS
    assert together == alone
