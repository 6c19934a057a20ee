"""The demo model under grammars, in its engine: what it writes is valid, in every combination, ahead of the device or
not; and by the openai package."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from jaxinfer import LLM, SamplingParams
from jaxinfer.cli import main
from jaxinfer.constraint import Constraint
from tests.runner.devices import run_on_devices

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS: list[dict[str, Any]] = [
    PERSON,
    {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 4},
    {"type": "object", "properties": {"ok": {"type": "boolean"}, "n": {"type": "null"}}, "required": ["ok", "n"],
     "additionalProperties": False},
    {"anyOf": [{"const": "yes"}, {"type": "integer", "minimum": 10, "maximum": 20}]},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"v": {"type": "boolean"}, "l": {
        "type": "array", "items": {"enum": [1, 2]}, "maxItems": 2}}, "required": ["v", "l"],
        "additionalProperties": False}}},
    {"type": "string", "pattern": "^[a-f]{2,4}-[0-9]{2}$"},
]  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "n": {"n": 3},
    "penalties": {"frequency_penalty": 1.5, "presence_penalty": 0.5, "repetition_penalty": 1.3},
    "bias": {"logit_bias": {0: 100.0, 300: 50.0}},
    "min_tokens": {"min_tokens": 100},
    "log-probabilities": {"logprobs": 5},
    "thresholds": {"top_p": 0.9, "top_k": 40, "min_p": 0.01},
    "no end of its own": {"ignore_eos": True},
}


def asked(number: int, **others: Any) -> SamplingParams:
    """One of SCHEMAS, and beside them a regex and a choice."""
    kinds = [
        *(Constraint.schema(schema, "it") for schema in SCHEMAS),
        Constraint.text("regex", "[a-z]{3}(-[0-9]{2}){1,3}", "it"),
        Constraint.choice(["Paris", "New York", "the sea"], "it"),
    ]
    return SamplingParams(max_tokens=200, seed=number, structured_outputs=kinds[number % len(kinds)], **others)


def check(params: SamplingParams, text: str) -> None:
    constraint = params.structured_outputs
    assert constraint is not None
    if constraint.kind == "json_schema":
        jsonschema.validate(json.loads(text), json.loads(constraint.value))
    elif constraint.kind == "regex":
        assert re.fullmatch(constraint.value, text)
    else:
        assert text in json.loads(constraint.value)


@pytest.mark.parametrize("name", OTHERS)
def test_texts_are_valid_and_the_same_ahead_of_the_device_or_not(engines: dict[bool, LLM], name: str) -> None:
    """Beside rows that may say anything."""
    params = [asked(number, **OTHERS[name]) for number in range(16)]
    free = [replace(each, structured_outputs=None) for each in params[:4]]
    prompts = [f"Tell me of number {number % 3}." for number in range(20)]
    found = {overlap: llm.generate(prompts, [*params, *free]) for overlap, llm in engines.items()}
    for each, one, other in zip([*params, *free], found[True], found[False], strict=True):
        assert [choice.token_ids for choice in one.outputs] == [choice.token_ids for choice in other.outputs]
        for choice in one.outputs:
            assert each.structured_outputs is None or choice.finish_reason == "stop"
            if each.structured_outputs is not None:
                check(each, choice.text)
    assert engines[False].engine.stats().compiles_after_ready == 0  # made last: nothing compiled in this process since


class Person(BaseModel):
    name: str = Field(max_length=10)
    age: int = Field(ge=0, le=99)


def test_openai_parses_a_model(client: openai.OpenAI) -> None:
    """With a thought before it, and in a stream."""
    said: Any = [{"role": "user", "content": "Who are you?"}]
    for _ in range(3):
        told = client.chat.completions.parse(model="demo", messages=said, response_format=Person, max_tokens=200)
        assert isinstance(told.choices[0].message.parsed, Person)
    schema: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    stream = client.chat.completions.create(
        model="demo", messages=said, response_format=schema, stream=True, max_tokens=200, extra_body={"thinking": True}
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    jsonschema.validate(json.loads(text), PERSON)


def test_what_cannot_be_compiled_is_a_400_that_names_it(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="demo", prompt="a", extra_body={"guided_json": {"not": {}}})
    assert error.value.param == "guided_json"
    assert "Unimplemented keys" in error.value.message


def test_files_and_flags_of_generate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text(json.dumps(PERSON))
    grammar.write_text('start: "a"~3 "b"\n')
    common = ["generate", "demo", "--prompt", "hi", "--max-tokens", "100"]
    assert main([*common, "--json-schema", str(schema)]) == 0
    jsonschema.validate(json.loads(capsys.readouterr().out), PERSON)
    assert main([*common, "--grammar", str(grammar)]) == 0
    assert capsys.readouterr().out == "aaab\n"
    for flags, said in (
        (["--regex", "a", "--grammar", str(grammar)], "--grammar: and regex both say what the text must be; give one"),
        (["--json-schema", str(tmp_path / "none")], "cannot be read"),
        (["--json-schema", str(grammar)], "--json-schema: is not JSON"),
        (["--regex", "("], "--regex: this regex is refused"),
    ):
        assert main([*common, *flags]) == 2
        assert said in capsys.readouterr().err


OVER_DEVICES = """
from jaxinfer import LLM
from tests.demo.test_structured_output import asked

found = []
for mesh in (None, "tp2", "data2-tp4"):
    llm = LLM("demo", max_num_seqs=8, max_num_batched_tokens=64, lazy_compile=True, **({"mesh": mesh} if mesh else {}))
    told = llm.generate([f"Tell me of number {i}." for i in range(12)], [asked(i, n=1 + i % 2) for i in range(12)])
    found.append([choice.token_ids for one in told for choice in one.outputs])
    llm.close()
assert found[0] == found[1] == found[2]
"""


@pytest.mark.long
def test_texts_are_the_same_over_several_devices() -> None:
    run_on_devices(OVER_DEVICES, 8)
