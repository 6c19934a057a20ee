"""Runs questions through the engine and counts."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from demo_data.question import Question

from demo_evaluation.conversation import openai_messages, verdict
from jaxinfer import LLM, SamplingParams

_GREEDY = SamplingParams(temperature=0.0, max_tokens=300)
_AT_ONCE = 64


class Result(NamedTuple):
    """A question, what the model said, and whether that was right. prompt, ids: tokens before and of what it said."""

    question: Question
    text: str
    right: bool
    prompt: list[int]
    ids: list[int]


def open_engine(folder: str | Path) -> LLM:
    """The engine with a model folder, in float32."""
    return LLM(str(folder), dtype="float32", max_num_seqs=_AT_ONCE, compile="lazy")


def answer(llm: LLM, questions: Sequence[Question]) -> list[Result]:
    """Asks each question by the model's chat template, greedily, many at once."""
    prompts = [prompt_ids(llm, question) for question in questions]
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], _GREEDY)
    results = []
    for question, ids, output in zip(questions, prompts, outputs, strict=True):
        said = output.outputs[0]
        results.append(Result(question, said.text, verdict(question, said.text), ids, said.token_ids))
    return results


def prompt_ids(llm: LLM, question: Question) -> list[int]:
    """The tokens before the answer; thinking is asked for by `enable_thinking`, as clients do."""
    text = llm.text.chat_template.render(
        [_plain(message) for message in openai_messages(question)],
        tools=list(question.tools) or None,
        template_kwargs={"enable_thinking": True} if question.thinking else None,
    )
    return llm.get_tokenizer().encode(text, add_special_tokens=False, param="messages")


def _plain(message: dict[str, object]) -> dict[str, object]:
    return {**message, "content": message["content"] or ""}


class Row(NamedTuple):
    """A line of the table."""

    kind: str
    asked: int
    right: int

    @property
    def share(self) -> float:
        """Share of questions that were answered right."""
        return self.right / self.asked


def table(results: Sequence[Result]) -> list[Row]:
    """A row a kind, and the last one over all."""
    asked = Counter(result.question.kind for result in results)
    right = Counter(result.question.kind for result in results if result.right)
    rows = [Row(kind, asked[kind], right[kind]) for kind in sorted(asked)]
    return [*rows, Row("over all", asked.total(), right.total())]


def markdown(rows: Sequence[Row]) -> str:
    """The table as Markdown."""
    lines = [f"| {row.kind} | {row.asked} | {row.right} | {row.share:.1%} |" for row in rows]
    return "\n".join(["| kind | asked | right | share |", "| --- | ---: | ---: | ---: |", *lines])


def write_json(path: Path, rows: Sequence[Row], results: Sequence[Result]) -> None:
    """The table, and each wrong answer with its question."""
    wrong = [{"kind": r.question.kind, "asked": r.question.messages[-1].content, "expected": r.question.answer.content,
              "said": r.text} for r in results if not r.right]  # fmt: skip
    content = {"table": [{**row._asdict(), "share": round(row.share, 4)} for row in rows], "wrong": wrong}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
