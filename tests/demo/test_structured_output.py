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
import tokenizers
from pydantic import BaseModel, Field

import jaxinfer
from jaxinfer import LLM, SamplingParams
from jaxinfer.build import DEMO_FOLDER
from jaxinfer.cli import main
from jaxinfer.constraint import Constraint
from jaxinfer.text.tokenizer.tokenizer import Tokenizer
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
    "bad words": {"bad_words": ["red", "Paris", "the", "1"]},
    "allowed ids": {"allowed_token_ids": range(300)},
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
    constraint = params.constraint
    assert constraint is not None
    if constraint.kind == "json_schema":
        jsonschema.validate(json.loads(text), json.loads(constraint.value))
    elif constraint.kind == "regex":
        assert re.fullmatch(constraint.value, text)
    else:
        assert text in json.loads(constraint.value)


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS)
def test_texts_are_valid_and_the_same_ahead_of_the_device_or_not(engines: dict[bool, LLM], name: str) -> None:
    """Beside rows that may say anything."""
    params = [asked(number, **OTHERS[name]) for number in range(16)]
    free = [replace(each, structured_outputs=None) for each in params[:4]]
    prompts = [f"Tell me of number {number % 3}." for number in range(20)]
    compiles = engines[True].engine.stats().device.compiles_after_ready
    found = {overlap: llm.generate(prompts, [*params, *free]) for overlap, llm in engines.items()}
    assert engines[True].engine.stats().device.compiles_after_ready == compiles
    for each, one, other in zip([*params, *free], found[True], found[False], strict=True):
        assert [choice.token_ids for choice in one.outputs] == [choice.token_ids for choice in other.outputs]
        for choice in one.outputs:
            assert each.structured_outputs is None or choice.finish_reason == "stop"
            if each.structured_outputs is not None:
                check(each, choice.text)


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


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"],
            "additionalProperties": False,
        },
    },
}  # fmt: skip
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "strict": True,
        "parameters": {
            "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["a"],
            "additionalProperties": False,
        },
    },
}  # fmt: skip
TOOLS = [WEATHER, ADD]
NAMED: Any = {"type": "function", "function": {"name": "add"}}
ALLOWED: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
WAYS: dict[str, tuple[dict[str, Any], set[str], str]] = {
    "required": ({"tool_choice": "required"}, {"get_weather", "add"}, "tool_calls"),
    "required, one": (
        {"tool_choice": "required", "parallel_tool_calls": False}, {"get_weather", "add"}, "tool_calls"
    ),
    "named": ({"tool_choice": NAMED}, {"add"}, "stop"),
    "allowed": ({"tool_choice": ALLOWED, "parallel_tool_calls": False}, {"add"}, "tool_calls"),
}  # fmt: skip
"""Fields, the functions that may be called, and why the answer ends."""


def answered(client: openai.OpenAI, stream: bool, question: str, **fields: Any) -> tuple[str, list[Any], str | None]:
    """Content, calls and the reason of the end."""
    asked: dict[str, Any] = {
        "model": "demo", "messages": [{"role": "user", "content": question}], "max_tokens": 300, **fields
    }  # fmt: skip
    if not stream:
        (choice,) = client.chat.completions.create(**asked).choices
        return choice.message.content or "", choice.message.tool_calls or [], choice.finish_reason
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(stream=True, **asked)]
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert [call.index for call in calls] == list(range(len(calls)))
    return "".join(chunk.delta.content or "" for chunk in chunks), calls, chunks[-1].finish_reason


def check_calls(calls: list[Any], *, strict_only: bool = False) -> None:
    known = {tool["function"]["name"]: tool["function"] for tool in TOOLS}
    for call in calls:
        function = known[call.function.name]
        if function.get("strict") or not strict_only:
            jsonschema.validate(json.loads(call.function.arguments), function["parameters"])


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_forced_calls(client: openai.OpenAI, way: str, stream: bool, thinking: bool) -> None:
    """Of a question that would not make the model call; hot, so that it would write anything."""
    fields, names, reason = WAYS[way]
    for seed in range(2):
        content, calls, ended = answered(
            client, stream, "Hello!", tools=TOOLS, seed=seed, temperature=2 * seed, logit_bias={"6": 5},
            extra_body={"thinking": thinking}, **fields,
        )  # fmt: skip
        check_calls(calls)
        assert {call.function.name for call in calls} <= names
        assert not content
        if ended != "length":  # only `required` may call for ever
            assert calls
            assert ended == reason
        assert way == "required" or len(calls) <= 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_strict_tool_among_tools_that_the_model_may_call(client: openai.OpenAI, stream: bool) -> None:
    content, calls, ended = answered(client, stream, "What is the weather in Rome?", tools=TOOLS, temperature=0)
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("get_weather", {"city": "Rome"})
    ]
    assert (content, ended) == ("", "tool_calls")
    free = answered(client, stream, "Hello!", tools=[WEATHER], temperature=0)
    assert answered(client, stream, "Hello!", tools=[*TOOLS[:1], ADD], temperature=0)[1:] == free[1:] == ([], "stop")
    for seed in range(3):
        _, calls, _ = answered(client, stream, "Hello!", tools=TOOLS, seed=seed, temperature=2, logit_bias={"5": 8})
        check_calls(calls, strict_only=True)


@pytest.mark.parametrize("stream", [True, False])
def test_a_format_beside_tools(client: openai.OpenAI, stream: bool) -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    fields: dict[str, Any] = {"tools": TOOLS, "response_format": schema, "temperature": 0}
    content, calls, ended = answered(client, stream, "What is the weather in Rome?", **fields)
    assert (content, len(calls), ended) == ("", 1, "tool_calls")
    brace = Tokenizer(Path(jaxinfer.__file__).parent / "demo").encode('{"')
    content, calls, ended = answered(client, stream, "Who are you?", **fields, logit_bias={str(brace[0]): 100})
    jsonschema.validate(json.loads(content), PERSON)
    assert (calls, ended) == ([], "stop")
    content, calls, ended = answered(client, stream, "Who are you?", **fields, tool_choice="none")
    jsonschema.validate(json.loads(content), PERSON)


def test_a_schema_of_a_tool_that_cannot_be_compiled_is_named(client: openai.OpenAI) -> None:
    unique: Any = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {
        "type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}}}  # fmt: skip
    for fields in ({}, {"tool_choice": "required"}):
        with pytest.raises(openai.BadRequestError) as error:
            answered(client, False, "Hello!", tools=[WEATHER, unique], **fields)
        assert error.value.param == "tools[1].function.parameters"
        assert "uniqueItems" in error.value.message


def test_structural_tags(client: openai.OpenAI) -> None:
    """In both forms, of a chat and of a completion."""
    number = {"begin": "<number>", "schema": {"type": "integer", "maximum": 99}, "end": "</number>"}
    older: Any = {"type": "structural_tag", "structures": [number], "triggers": ["<number>"]}
    content, _, _ = answered(client, False, "Hello!", response_format=older, temperature=0)
    assert content
    inner = {"type": "json_schema", "json_schema": number["schema"]}
    tag = {"type": "tag", "begin": "<number>", "content": inner, "end": "</number>"}
    tags = {"format": {"type": "sequence", "elements": [{"type": "const_string", "value": "It is "}, tag]}}
    told = client.completions.create(
        model="demo", prompt="a", max_tokens=99, extra_body={"structured_outputs": {"structural_tag": json.dumps(tags)}}
    )
    assert (found := re.fullmatch(r"It is <number>(-?\d+)</number>", told.choices[0].text))
    assert int(found[1]) <= 99


def test_bad_words_and_allowed_ids_by_http(client: openai.OpenAI) -> None:
    """In completions and chats, streams among them; the words of an answer are not said again, by their tokens."""
    said: Any = [{"role": "user", "content": "Who are you?"}]
    tokenizer = tokenizers.Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json"))

    def chat(**more: Any) -> tuple[str, list[int]]:
        extra = {"return_token_ids": True, "thinking": False, **more}
        told: Any = client.chat.completions.create(
            model="demo", messages=said, temperature=0, max_tokens=40, extra_body=extra
        )
        return told.choices[0].message.content, told.choices[0].token_ids

    free, _ = chat()
    words = [word.strip(",.!?") for word in free.split()][:3]
    sequences = [tokenizer.encode(space + word, add_special_tokens=False).ids for word in words for space in ("", " ")]
    other, ids = chat(bad_words=words)
    assert other != free
    for word in sequences[::2] + [each for each in sequences[1::2] if len(each) == 1]:
        assert not any(ids[first : first + len(word)] == word for first in range(len(ids)))
    allowed = sorted({*tokenizer.encode(free).ids, 2})[1:]
    _, ids = chat(allowed_token_ids=allowed, temperature=1.5)
    assert set(ids) <= set(allowed)
    stream: Any = client.completions.create(
        model="demo", prompt="a", stream=True, max_tokens=8, extra_body={"allowed_token_ids": [75], "ignore_eos": True}
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == 8 * tokenizer.decode([75])


def test_what_cannot_be_compiled_is_a_400_that_names_it(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="demo", prompt="a", extra_body={"guided_json": {"contains": {}}})
    assert error.value.param == "guided_json"
    assert "Unimplemented keys" in error.value.message


def test_where_nothing_is_left_to_draw_the_request_is_told_so(client: openai.OpenAI) -> None:
    asked: Any = {"model": "demo", "prompt": "a", "extra_body": {"guided_choice": ["it"], "allowed_token_ids": [9]}}
    with pytest.raises(openai.BadRequestError, match="by allowed_token_ids and guided_choice") as error:
        client.completions.create(**asked)
    assert error.value.param == "allowed_token_ids"
    with pytest.raises(openai.APIError, match="by allowed_token_ids and guided_choice"):
        list(client.completions.create(stream=True, **asked))


@pytest.mark.long
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


def compare_meshes() -> None:
    found = []
    for mesh in (None, "tp2", "data2-tp4"):
        named: dict[str, Any] = {"mesh": mesh} if mesh else {}
        llm = LLM("demo", max_num_seqs=8, max_num_batched_tokens=64, compile="lazy", **named)
        told = llm.generate([f"Tell me of number {i}." for i in range(12)], [asked(i, n=1 + i % 2) for i in range(12)])
        found.append([choice.token_ids for one in told for choice in one.outputs])
        llm.close()
    assert found[0] == found[1] == found[2]


@pytest.mark.long
def test_texts_are_the_same_over_several_devices() -> None:
    run_on_devices(compare_meshes, 8)
