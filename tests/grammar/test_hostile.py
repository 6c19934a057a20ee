"""Grammars that take too much, or end the process that compiles them: refused, and nothing else comes to harm."""

import contextlib
import gc
import json
import random
import threading
import time
from typing import Any

import psutil
import pytest

from jaxinfer.constraint import Constraint
from jaxinfer.engine.constraint import MatcherError
from jaxinfer.errors import ParameterError, WorkerLostError
from jaxinfer.grammar.grammars import Asked, Grammars
from jaxinfer.grammar.schema.rewriting import rewritten
from jaxinfer.heap import allocated
from tests.grammar.walks import END, FILE, SIZE, compiled, legal, walk


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(FILE, SIZE, (END,))


def chain(links: int) -> dict[str, Any]:
    """A schema of so many definitions, each in the one before it."""
    last: dict[str, Any] = {f"d{links}": {"type": "null"}}
    of = {f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(links)}
    return {"$ref": "#/$defs/d0", "$defs": of | last}


TAKES_LONG = Constraint.schema({"type": "integer", "multipleOf": 9_999_991}, "x")
HOSTILE = {
    "a chain of definitions": Constraint.schema(chain(2000), "x"),
    "a chain of rules": Constraint.text("grammar", "".join(f"r{i}: r{i + 1}\n" for i in range(9000)).replace(
        "r0:", "start:", 1) + 'r9000: "a"\n', "x"),
    "one that goes on for a token": Constraint.text("regex", "(a|a)*(a|aa){500}(a|aaa){500}c", "x"),
    "one that takes seconds first": Constraint.text("regex", "((a{1000}){1000}){1000}", "x"),
    "no text": Constraint.schema({"$ref": "#"}, "x"),
    "the empty text": Constraint.text("regex", "(?:)", "x"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_they_are_refused_and_others_go_on(grammars: Grammars, name: str) -> None:
    with pytest.raises(ParameterError, match="refused: "):
        compiled(grammars, HOSTILE[name])
    assert legal(grammars, compiled(grammars, Constraint.text("regex", "a+", "x")), SIZE)


def trials(grammars: Grammars) -> list[psutil.Process]:
    """The process that tries grammars out, and its copy."""
    compiled(grammars, Constraint.text("regex", "a+", "x"))
    (trial,) = grammars._idle
    first = psutil.Process(trial._process.pid)
    for _ in range(1000):
        if copies := first.children():
            return [first, *copies]
        time.sleep(0.01)
    raise AssertionError("there is no copy")


def test_whoever_streams_goes_before_what_is_tried_out(grammars: Grammars) -> None:
    found = trials(grammars)
    assert len(found) == 2
    assert {trial.nice() for trial in found} == {min(psutil.Process().nice() + 10, 19)}


def test_a_crash_costs_no_start(grammars: Grammars) -> None:
    first, copy = trials(grammars)
    with pytest.raises(ParameterError, match="nested too deeply"):
        compiled(grammars, Constraint.schema(chain(2001), "x"))  # another than one that is remembered
    same, another = trials(grammars)
    assert same == first
    assert another != copy


def test_a_copy_that_another_kills_is_no_fault_of_the_grammar(grammars: Grammars) -> None:
    """Whoever asks again gets another process."""
    killed = threading.Timer(1, trials(grammars)[1].kill)
    killed.start()
    with pytest.raises(WorkerLostError):
        compiled(grammars, TAKES_LONG)
    assert legal(grammars, compiled(grammars, Constraint.text("regex", "b+", "x")), SIZE)


def nested(schema: dict[str, Any], times: int) -> dict[str, Any]:
    """A schema within so many others."""
    return {"not": nested(schema, times - 1)} if times else schema


TAKES_LONG_TO_REWRITE = {
    "lists within choices": {"enum": [1] * 40_000, "oneOf": [{}] * 1000},
    "keys of references": {
        "$defs": {"a": {"type": "object", "required": [f"p{each}" for each in range(10_000)]}},
        "oneOf": [{"$ref": "#/$defs/a"}] * 500,
    },
    "a list of references to a list": {
        "$defs": {"e": {"enum": [1] * 60_000}, "m": {"anyOf": [{"$ref": "#/$defs/e"}] * 100}},
        "type": "array", "uniqueItems": True, "items": {"anyOf": [{"$ref": "#/$defs/m"}] * 3},
    },
    "a count of properties": {"type": "object", "properties": {"a": {}}, "minProperties": 10**12},
    "counts of many properties": {
        "type": "object", "properties": {f"p{each}": {} for each in range(4000)}, "maxProperties": 2000,
    },
    "ways into one another": {
        "anyOf": [{"$ref": f"#/x{'/not' * each}"} for each in range(1, 55)], "x": nested({"anyOf": [{}] * 8000}, 55),
    },
    "arrays of many": {"type": "array", "uniqueItems": True, "items": {"enum": [*range(4000)]}},
}  # fmt: skip


@pytest.mark.parametrize("name", TAKES_LONG_TO_REWRITE)
def test_what_takes_long_to_rewrite_takes_nothing_of_this_process(grammars: Grammars, name: str) -> None:
    """However it ends: it takes a bounded time, of another process."""
    constraint = Constraint.schema(TAKES_LONG_TO_REWRITE[name], "x")
    legal(grammars, compiled(grammars, Constraint.text("regex", "a+", "x")), SIZE)
    used = time.thread_time()
    with contextlib.suppress(ParameterError):
        compiled(grammars, constraint)
    assert time.thread_time() - used < 1
    assert legal(grammars, compiled(grammars, Constraint.text("regex", "a+", "x")), SIZE)


@pytest.mark.parametrize("name", [name for name in TAKES_LONG_TO_REWRITE if name != "ways into one another"])
def test_rules_end_soon_however_long_lists_are(name: str) -> None:
    began = time.thread_time()
    assert rewritten(json.dumps(TAKES_LONG_TO_REWRITE[name])).text
    assert time.thread_time() - began < 3


def test_what_takes_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxinfer.grammar.trial._SECONDS", 2.0)
    grammars = Grammars(FILE, SIZE, (END,))
    with pytest.raises(ParameterError, match="x: this json_schema is refused: it takes more than"):
        compiled(grammars, TAKES_LONG)
    assert legal(grammars, compiled(grammars, Constraint.text("regex", "a+", "x")), SIZE)


def test_one_that_has_failed_is_compiled_anew(grammars: Grammars) -> None:
    constraint = Constraint.text("regex", "a+", "x")
    first = compiled(grammars, constraint)
    kept = grammars._kept[Asked(constraint)]
    with pytest.raises(MatcherError):
        first.accept([5])
    assert Asked(constraint) not in grammars._kept
    compiled(grammars, constraint)
    assert grammars._kept[Asked(constraint)] is not kept


def test_what_is_kept_is_bounded_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars, large = Grammars(FILE, SIZE, (END,)), Constraint.choice([f"{i}" * 50 for i in range(1000)], "x")
    compiled(grammars, large)
    assert grammars._kept[Asked(large)].bytes > 2 << 20
    monkeypatch.setattr("jaxinfer.grammar.grammars._MOST_BYTES", 2 << 20)
    compiled(grammars, Constraint.text("regex", "b", "x"))
    assert Asked(large) not in grammars._kept


def ordinary(number: int) -> dict[str, Any]:
    """A schema of a few fields, unlike others."""
    fields = {
        f"name{number}": {"type": "string"},
        "age": {"type": "integer"},
        "kind": {"enum": ["a", "b", "c"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "at": {"type": "string", "format": "date-time"},
    }
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}


@pytest.mark.parametrize("schemas", [
    [{"enum": [f"{number}-{each:07x}" for each in range(6000)]} for number in range(3)], list(map(ordinary, range(40))),
], ids=["enums", "ordinary"])  # fmt: skip
def test_what_is_counted_is_no_less_than_what_is_taken(schemas: list[dict[str, Any]]) -> None:
    """By the C library, in the process that keeps them, after a text of each."""
    grammars, draw = Grammars(FILE, SIZE, (END,)), random.Random(0)
    compiled(grammars, Constraint.schema({"type": "integer"}, "x"))
    gc.collect()  # what other tests have left would be missing from what these take
    before, counted = allocated(), grammars.stats().grammar_bytes
    for schema in schemas:
        walk(grammars, compiled(grammars, Constraint.schema(schema, "x")), SIZE, draw, 60)
    gc.collect()
    taken = allocated() - before
    assert taken > 2 << 20
    assert taken <= grammars.stats().grammar_bytes - counted <= 4 * taken
    grammars.close()


@pytest.mark.parametrize(("vocabulary", "ends"), [(SIZE + 500, (SIZE + 3, END)), (SIZE - 60, (END,)), (SIZE, ())])
def test_models_with_more_and_fewer_ids_than_the_tokenizer(vocabulary: int, ends: tuple[int, ...]) -> None:
    grammars = Grammars(FILE, vocabulary, ends)
    matcher = compiled(grammars, Constraint.text("regex", ".*", "x"), frozenset(ends))
    found = legal(grammars, matcher, vocabulary)
    assert max(found) < vocabulary
    assert set(found) - set(ends) <= set(range(SIZE))
    assert set(ends) <= set(found)


def test_closing_ends_the_process_that_tries() -> None:
    grammars = Grammars(FILE, SIZE, (END,))
    compiled(grammars, Constraint.text("regex", "a+", "x"))
    (trial,) = grammars._idle
    assert trial._process.pid is not None
    copies = psutil.Process(trial._process.pid).children()
    grammars.close()
    assert not trial._process.running
    assert copies
    assert not psutil.wait_procs(copies, timeout=10)[1]
