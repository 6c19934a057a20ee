"""Function calls of real questions: under `required`, named and strict, whatever is written is a valid call."""

import json
import os
import random
from collections import Counter
from functools import cache
from typing import Any

import pytest

from jaxinfer.errors import ParameterError
from jaxinfer.grammar.grammars import Grammars
from jaxinfer.text.answer.calls.form import CallForm
from jaxinfer.text.answer.calls.json_calls import HERMES
from jaxinfer.text.answer.calls.registry import CALL_FORMS
from jaxinfer.text.answer.parser import AnswerFormat
from tests.grammar.calls import Writer, check_calls, constraint_of, taken_apart
from tests.grammar.walks import END, FILE, SIZE
from tests.material import material

GRAMMARS = Grammars(FILE, SIZE, (END,))
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
"""Of Python, in the questions, and what JSON Schema calls them."""
WAYS = ("required", "named", "strict")


def as_schema(value: Any) -> Any:
    """With JSON Schema's names of types."""
    if isinstance(value, list):
        return [as_schema(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {key: as_schema(each) for key, each in value.items()}
    if isinstance(found.get("type"), str) and found["type"] in TYPES:
        found["type"] = TYPES[found["type"]]
        if found["type"] is None:
            del found["type"]
    return found


@cache
def questions() -> list[list[dict[str, Any]]]:
    lines = material("functions", "bfcl_simple_python.jsonl").read_text().splitlines()
    return [[{**each, "parameters": as_schema(each["parameters"])} for each in json.loads(line)["function"]]
            for line in lines]  # fmt: skip


def write(functions: list[dict[str, Any]], way: str, draw: random.Random, form: CallForm = HERMES) -> int:
    """How many calls a text had, all of them valid; -1 where it did not end."""
    answers = AnswerFormat(calls=form).offering([(each["name"], each["parameters"]) for each in functions])
    fields: dict[str, Any] = {"tool_choice": way}
    if way == "named":
        fields["tool_choice"] = {"type": "function", "function": {"name": functions[0]["name"]}}
    if way == "strict":
        fields, functions = {}, [{**each, "strict": True} for each in functions]
    constraint = constraint_of(functions, form=answers, **fields)
    assert constraint is not None
    marks = [] if form is HERMES else [mark for mark in form.marks if mark.strip() and mark.isascii()]
    text = Writer(GRAMMARS, draw, 1500, marks).write(constraint)
    if text is None:
        return -1
    answer = taken_apart(text, draw, answers)
    check_calls(answer, functions)
    if way != "strict":
        assert answer.tool_calls
        assert not answer.content
        assert way != "named" or len(answer.tool_calls) == 1
    return len(answer.tool_calls)


def check(numbers: range, form: CallForm = HERMES) -> Counter[str]:
    """Counts of texts by their way; asserts that few schemas were refused."""
    seed = int(os.environ.get("JAXINFER_TEST_SEED", "0"))
    draw, refused, found = random.Random(seed), Counter[str](), Counter[str]()
    for number in numbers:
        for way in WAYS:
            try:
                calls = write(questions()[number], way, draw, form)
            except ParameterError as error:
                refused[str(error)] += 1
                continue
            found[f"{way}: unfinished" if calls < 0 else way] += 1
            found[f"{way}: calls"] += max(calls, 0)
    print(f"{dict(found)}; refused: {dict(refused)}")
    assert all(error.startswith("tools[0].function.parameters: ") for error in refused)
    assert sum(refused.values()) <= 0.05 * len(numbers) * len(WAYS)
    return found


def check_hermes(numbers: range) -> None:
    found = check(numbers)
    for way in WAYS:
        assert found[way] >= 0.8 * len(numbers)
        assert found[f"{way}: calls"] >= 0.5 * len(numbers)


def test_calls_of_some_questions_are_valid() -> None:
    check_hermes(range(0, 400, 20))


@pytest.mark.long
def test_calls_of_all_questions_are_valid() -> None:
    check_hermes(range(400))


OTHERS = {f"{form.title} {number}": form for number, form in enumerate(CALL_FORMS) if form is not HERMES}


@pytest.mark.parametrize("name", OTHERS)
def test_calls_in_other_forms_are_valid(name: str) -> None:
    assert check(range(0, 400, 100), OTHERS[name])["required: calls"]


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS)
def test_calls_of_all_questions_in_other_forms_are_valid(name: str) -> None:
    # Free text seldom ends where letters are drawn, so many texts of elements are cut off.
    assert check(range(0, 400, 4), OTHERS[name])["required: calls"] >= 50
