"""Constrained requests to the demo model in every pair of circumstances.

`python -m tests.demo.structured_matrix` prints them. A row is a request and the run that it has a part in. All rows of
a run are beside each other, and beside requests that may say anything.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jsonschema
from lark import Lark

from jaxinfer import LLM, SamplingParams
from jaxinfer.constraint import Constraint
from jaxinfer.engine.client.sequence_ids import SequenceIds
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.text.answer.thoughts import THINK
from jaxinfer.text.request_output import CompletionOutput, OutputCollector, RequestOutput
from tests.runner.pairwise import pairwise

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 999},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
REGEX = r"[A-Z][a-z]{2,8}(, [a-z]{3,6}){1,5}\."
CHOICES = ["the capital of France", "the capital of Peru", "a small village", "8.5"]
GRAMMAR = r"""
start: pair ("; " pair)~1..4
pair: NAME " = " NUMBER
NAME: /[a-z]{2,6}/
NUMBER: /[1-9][0-9]{0,2}/
"""
CONSTRAINTS = {
    "json_schema": Constraint.schema(SCHEMA),
    "json_object": Constraint("json_object"),
    "regex": Constraint.text("regex", REGEX),
    "choice": Constraint.choice(CHOICES),
    "grammar": Constraint.text("grammar", GRAMMAR),
}
RUNS = ("ahead", "step faults", "few blocks", "decode-steps 4", "tp 2", "draft model", "n-grams", "head")
TABLE: dict[str, Sequence[Any]] = {
    "run": RUNS,
    "kind": tuple(CONSTRAINTS),
    "thought": ("none", "begun", "may begin"),
    "n": (1, 3),
    "penalties": (False, True),
    "bias": (False, True),
    "min_tokens": (0, 60),
    "stops": ("none", "string", "id"),
    "logprobs": (None, 4),
    "prompt": ("short", "chunks", "prefix hit"),
    "aborted": (False, True),
}
STOP_STRING, STOP_WORD = "e", "green"
"""A string that texts of each kind may have, and a token of the model that stops where the grammar may end."""
ABORTED_AT = 6
"""Tokens after which a request is aborted."""
_BIAS = {12: -5.0, 300: 30.0, 700: 10.0}
_PREFIX = "Count for as long as you can, please. " * 12
_QUESTION = "Write JSON with name Anna, age 31 and city Rome."


class Row(NamedTuple):
    """values: of TABLE's parameters, by their names. number: of the row in the whole matrix."""

    number: int
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What fails, in a line."""
        return f"row {self.number}: " + ", ".join(f"{name} {value}" for name, value in self.values.items())


def matrix() -> list[Row]:
    """Every pair of values of any two parameters is in one of the rows."""
    return [Row(number, values) for number, values in enumerate(pairwise(TABLE))]


def rows_of(run: str) -> list[Row]:
    """In the order of the matrix."""
    return [row for row in matrix() if row.values["run"] == run]


def request_of(llm: LLM, row: Row) -> GenerateRequest:
    """With a seed of its own; its prompt opens a thought where one has begun."""
    values = row.values
    rendered = llm.text.conversations.encode(
        [{"role": "user", "content": _said(row)}],
        add_generation_prompt=True,
        template_kwargs={"enable_thinking": values["thought"] == "begun"},
    )
    return GenerateRequest(f"row {row.number}", rendered.token_ids, _params(llm, row))


def free_requests(llm: LLM) -> list[GenerateRequest]:
    """That may say anything: one ends before most others, and one goes on when those have ended."""
    prompt = llm.text.tokenizer.encode("Once upon a time")
    params = [SamplingParams(max_tokens=most, seed=most, ignore_eos=True) for most in (60, 320)]
    return [GenerateRequest(f"free {number}", prompt, each) for number, each in enumerate(params)]


def prefix_request(llm: LLM) -> GenerateRequest:
    """Leaves blocks that rows with a `prefix hit` begin with."""
    rendered = llm.text.conversations.encode([{"role": "user", "content": _PREFIX}], add_generation_prompt=True)
    return GenerateRequest("prefix", rendered.token_ids, SamplingParams(max_tokens=1))


def _said(row: Row) -> str:
    """Long enough for three chunks of 64 tokens, or for six blocks of 16 in common with others, where asked for."""
    if row.values["prompt"] == "chunks":
        return f"{row.number} " + f"Number {row.number} is not a story. " * 20 + _QUESTION
    if row.values["prompt"] == "prefix hit":
        return f"{_PREFIX}{row.number}. {_QUESTION}"
    return f"{_QUESTION} {row.number}"


def _params(llm: LLM, row: Row) -> SamplingParams:
    values = row.values
    return SamplingParams(
        n=values["n"],
        seed=row.number,
        max_tokens=160,
        min_tokens=values["min_tokens"],
        logprobs=values["logprobs"],
        logit_bias=_BIAS if values["bias"] else {},
        stop=[STOP_STRING] if values["stops"] == "string" else [],
        stop_token_ids=llm.text.tokenizer.encode(STOP_WORD) if values["stops"] == "id" else [],
        structured_outputs=_constraint(llm, row),
        frequency_penalty=0.8 if values["penalties"] else 0.0,
        presence_penalty=0.4 if values["penalties"] else 0.0,
        repetition_penalty=1.1 if values["penalties"] else 1.0,
    )


def _constraint(llm: LLM, row: Row) -> Constraint:
    constraint, thought = CONSTRAINTS[row.values["kind"]], row.values["thought"]
    if thought == "none":
        return constraint
    begin = llm.text.tokenizer.added_ids[THINK.begin] if thought == "may begin" else None
    return constraint.after_thought(THINK.end, begin)


def outputs_of(
    llm: LLM, requests: Sequence[GenerateRequest], aborted: Mapping[str, int] | None = None
) -> dict[str, RequestOutput]:
    """Of requests that run beside each other. aborted: by their ids, after how many tokens of the first sequence."""
    collectors = {each.request_id: OutputCollector(llm.text.tokenizer, each, None) for each in requests}
    names, left = SequenceIds(), dict(aborted or {})
    for request in requests:
        llm.engine.add_request(request)
    while llm.engine.has_work():
        for delta in names.expand(llm.engine.step()):
            shown = collectors[delta.request_id].push(delta)
            if shown is not None and shown.stop_at is not None:
                llm.engine.stop(delta.request_id, delta.index)
        for name in [name for name, most in left.items() if _tokens(collectors[name]) >= most]:
            del left[name]
            llm.engine.abort(name)
    return {name: collector.output for name, collector in collectors.items()}


def _tokens(collector: OutputCollector) -> int:
    return len(collector.output.outputs[0].token_ids)


def check_rows(llm: LLM, plain: LLM, run: str) -> None:
    """llm: what the run is of. plain: without overlap."""
    rows = rows_of(run)
    requests = [*(request_of(llm, row) for row in rows), *free_requests(llm)]
    expected = outputs_of(plain, requests)
    outputs_of(llm, [prefix_request(llm)])
    before = llm.engine.stats()
    found = outputs_of(llm, requests, {f"row {row.number}": ABORTED_AT for row in rows if row.values["aborted"]})
    after = llm.engine.stats()
    check_run(rows, found, expected)
    assert any(choice.finish_reason == "abort" for output in found.values() for choice in output.outputs)
    assert after.admission.prefix_hits > before.admission.prefix_hits


def check_run(rows: Sequence[Row], found: Mapping[str, RequestOutput], expected: Mapping[str, RequestOutput]) -> None:
    """All outputs of a run, against those of an engine that reads each step before the next, without aborts."""
    assert found.keys() == expected.keys()
    aborted = {f"row {row.number}" for row in rows if row.values["aborted"]}
    for name, output in found.items():
        for one, other in zip(output.outputs, expected[name].outputs, strict=True):
            if one.finish_reason == "abort":
                assert name in aborted
                assert one.token_ids == other.token_ids[: len(one.token_ids)], name
            else:
                assert (one.token_ids, one.text, one.finish_reason) == (
                    other.token_ids,
                    other.text,
                    other.finish_reason,
                ), name
    for row in rows:
        for one in found[f"row {row.number}"].outputs:
            check(row, one)


def check(row: Row, output: CompletionOutput) -> None:
    """That a text which has ended is valid, by json, jsonschema, re or lark, and has all that was asked for."""
    assert output.error is None, f"{row.name}: {output.error}"
    if row.values["logprobs"] is not None and output.token_ids:
        assert output.logprobs is not None
        assert len(output.logprobs) == len(output.token_ids)
        assert all(each[token].logprob > -1e4 for each, token in zip(output.logprobs, output.token_ids, strict=True))
    text = answer_in(row, output.text)
    if output.stop_reason == STOP_STRING:
        assert row.values["min_tokens"] or STOP_STRING not in output.text, row.name
    elif output.finish_reason == "stop":
        assert text is not None, row.name
        assert VALID[row.values["kind"]](text), f"{row.name}: {text!r}"


def answer_in(row: Row, text: str) -> str | None:
    """What the grammar is of; None where the thought has not ended."""
    if row.values["thought"] == "none" or (row.values["thought"] == "may begin" and not text.startswith(THINK.begin)):
        return text
    _, end, answer = text.partition(THINK.end)
    return answer if end else None


def _is_of_schema(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


def _is_of_grammar(text: str) -> bool:
    return Lark(GRAMMAR).parse(text) is not None


VALID: dict[str, Callable[[str], bool]] = {
    "json_schema": _is_of_schema,
    "json_object": lambda text: isinstance(json.loads(text), dict),
    "regex": lambda text: re.fullmatch(REGEX, text) is not None,
    "choice": lambda text: text in CHOICES,
    "grammar": _is_of_grammar,
}
"""Whether a text is one of the kind; it may raise instead."""


def main() -> None:
    """Prints the matrix."""
    for row in matrix():
        print(row.name)


if __name__ == "__main__":
    main()
