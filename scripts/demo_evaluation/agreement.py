"""Measure how often a draft agrees with the target's next token."""

from collections.abc import Sequence

from demo_evaluation.evaluation import Result
from jaxinfer import LLM, SamplingParams


def agreement(draft: LLM, results: Sequence[Result]) -> float:
    """Share of the target's tokens, in what it said to these questions, that are the draft's most likely ones."""
    prompts = [{"prompt_token_ids": [*result.prompt, *result.ids]} for result in results]
    outputs = draft.generate(prompts, SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0))
    agreed = total = 0
    for result, output in zip(results, outputs, strict=True):
        assert output.prompt_logprobs is not None
        entries = output.prompt_logprobs[len(result.prompt) :]
        for token, entry in zip(result.ids, entries, strict=True):
            assert entry is not None
            agreed, total = agreed + (entry[token].rank == 1), total + 1
    return agreed / total
