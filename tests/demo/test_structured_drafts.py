"""The demo model under grammars, with drafts: texts are valid, and every token is that of an engine without drafts."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import jsonschema
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.constraint import Constraint
from jaxinfer.engine.scheduler.draft_policy import DraftPolicy
from jaxinfer.engine.step.plan import StepPlan, StepResult
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.text.answer.thoughts import THINK
from tests.demo.structured_matrix import check_rows, outputs_of

DRAFTERS: dict[str, dict[str, Any]] = {
    "draft model": {"model": "demo/draft"},
    "head": {"method": "eagle3", "model": "demo/eagle3"},
    "n-grams": {"method": "ngram"},
}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
QUESTIONS = (
    "Write JSON with name Anna, age 31 and city Rome.",
    "What is 3 plus 4?",
    "What is the capital of France?",
    "Is 9.11 larger than 9.8?",
)


def standing() -> int:
    """With such a clock drafting stays on."""
    return 0


def with_drafts(name: str) -> LLM:
    config = {**DRAFTERS[name], "num_speculative_tokens": 3}
    sizes: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "compile": "lazy"}
    llm = LLM("demo", dtype="float32", speculative_config=config, **sizes)
    llm.engine.scheduler.drafts = DraftPolicy(standing, 3)
    return llm


@pytest.fixture(scope="module")
def by_model() -> Iterator[LLM]:
    """Another model drafts."""
    with closing(with_drafts("draft model")) as llm:
        yield llm


class ThoughtEnds:
    """Steps of an engine in which a thought ends. kept: as a draft, with more tokens of the row after it."""

    def __init__(self, llm: LLM, monkeypatch: pytest.MonkeyPatch):
        self.seen = self.kept = 0
        (self._end,) = llm.text.tokenizer.encode(THINK.end)
        self._collect = llm.engine.in_flight.collect
        monkeypatch.setattr(llm.engine.in_flight, "collect", self._counting)

    def _counting(self) -> tuple[StepPlan, StepResult]:
        plan, result = self._collect()
        for row in range(plan.num_rows):
            tokens = result.tokens[row, : result.counts[row]].tolist()
            self.seen += self._end in tokens
            self.kept += self._end in tokens[:-1]
        return plan, result


def thinking(llm: LLM, number: int) -> GenerateRequest:
    """A thought, as hot as its number says, and then JSON of a schema."""
    said = [{"role": "user", "content": f"{QUESTIONS[number % len(QUESTIONS)]} {number}"}]
    prompt = llm.text.conversations.encode(
        said, add_generation_prompt=True, template_kwargs={"enable_thinking": True}
    ).token_ids
    params = SamplingParams(
        max_tokens=200,
        seed=number,
        temperature=(0.0, 0.3, 0.7, 1.0)[number // 4 % 4],
        structured_outputs=Constraint.schema(PERSON).after_thought(THINK.end, None),
    )
    return GenerateRequest(f"{number}", prompt, params)


@pytest.mark.long
@pytest.mark.parametrize("count", [16, 200])
def test_thoughts_that_end_among_drafts(
    count: int, by_model: LLM, engines: dict[bool, LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every answer is valid; the tokens of up to 50 are compared."""
    requests = [thinking(by_model, number) for number in range(count)]
    expected = outputs_of(engines[False], requests[:50])
    ends = ThoughtEnds(by_model, monkeypatch)
    found = outputs_of(by_model, requests)
    assert ends.seen == count
    assert ends.kept > count // 2
    for name, output in found.items():
        assert name not in expected or output.outputs[0].token_ids == expected[name].outputs[0].token_ids
        assert output.outputs[0].finish_reason == "stop"
        jsonschema.validate(json.loads(output.outputs[0].text.partition(THINK.end)[2]), PERSON)


def check_drafts(llm: LLM, plain: LLM, run: str) -> None:
    """A run of the matrix whose steps draft, and keep drafts."""
    before = llm.engine.stats()
    check_rows(llm, plain, run)
    after = llm.engine.stats()
    assert after.drafts.accepted_tokens - before.drafts.accepted_tokens > 60
    assert after.steps.speculate_steps - before.steps.speculate_steps > 50


@pytest.mark.long
def test_the_matrix_with_drafts_by_a_model(by_model: LLM, engines: dict[bool, LLM]) -> None:
    check_drafts(by_model, engines[False], "draft model")


@pytest.mark.long
@pytest.mark.parametrize("drafter", ["n-grams", "head"])
def test_the_matrix_with_drafts_by_others(drafter: str, engines: dict[bool, LLM]) -> None:
    with closing(with_drafts(drafter)) as llm:
        check_drafts(llm, engines[False], drafter)
