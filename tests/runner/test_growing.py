"""Sizes that are compiled while an engine serves: tokens stay what they are, and no step waits for a compiler."""

import logging
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.step.buckets import first_buckets, make_buckets, missing_sizes
from jaxinfer.engine.step.plan import StepKind
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.platform.compile_cache import CompileCache
from jaxinfer.runner.programs.compiled import Programs
from jaxinfer.runner.programs.store import open_store
from jaxinfer.runner.programs.table import Name
from tests.runner.tiny import Judge, check_all, drive, greedy, make_core, random_prompt, seeded, tiny_model, tiny_shapes

MODEL = tiny_model((None,))
SHAPES = tiny_shapes(MODEL, few_sizes=False)
MISSING = missing_sizes(SHAPES, first_buckets(SHAPES))


@cache
def all_programs() -> dict[Name, Any]:
    programs = Programs(MODEL, SHAPES)
    programs.make(programs.names)
    return {name: programs[name] for name in programs.names}


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Programs are made once for all tests. fails: the program that cannot be compiled."""
    found: dict[str, Any] = {"fails": None, "made": []}
    known = all_programs()

    def add(programs: Programs, name: Name) -> None:
        if name == found["fails"]:
            raise RuntimeError("out of memory")
        found["made"].append(name)
        programs._compiled[name] = known[name]

    monkeypatch.setattr(Programs, "add", add)
    monkeypatch.setattr(Programs, "make", lambda programs, names, *_: [add(programs, name) for name in names])
    return found


def started() -> JaxRunner:
    runner = JaxRunner(MODEL, SHAPES)
    runner.warm_up(when="first")
    return runner


def requests() -> list[GenerateRequest]:
    rng = np.random.default_rng(7)
    sizes = [(3, 30), (20, 12), (9, 25), (41, 9), (1, 20), (28, 16), (5, 8)]
    return [
        GenerateRequest(f"r{i}", random_prompt(rng, length), seeded(count, i) if i % 2 else greedy(count))
        for i, (length, count) in enumerate(sizes)
    ]


def test_a_start_makes_the_programs_of_few_sizes(compiling: dict[str, Any]) -> None:
    runner = started()
    assert runner.buckets == first_buckets(SHAPES)
    assert len(MISSING) == 6
    assert set(compiling["made"]) == set(runner.stages[0].programs.names_of(first_buckets(SHAPES)))
    assert {*compiling["made"]} < {*runner.stages[0].programs.names}


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_tokens_do_not_depend_on_when_programs_come(ahead: int, compiling: dict[str, Any]) -> None:
    """Each size comes at a random moment of one history or another, and is used from then on."""
    rng, judge, used = np.random.default_rng(ahead), Judge(MODEL), set[tuple[StepKind, int]]()
    for _ in range(3):
        runner = started()
        moments = dict(zip(rng.permutation(np.arange(2, 20))[: len(MISSING)].tolist(), MISSING, strict=True))
        begin = runner.begin

        def noting(step: Any, begin: Any = begin) -> Any:
            used.add((step.kind, step.bucket))
            return begin(step)

        def between(core: EngineCore, number: int, runner: JaxRunner = runner, moments: Any = moments) -> None:
            if number in moments:
                runner.sizes.add(*moments[number])

        runner.begin = noting  # pyright: ignore[reportAttributeAccessIssue]
        runner.run = lambda step, runner=runner: runner.finish(step, runner.begin(step), None)  # pyright: ignore
        check_all(judge, requests(), drive(make_core(runner, ahead=ahead), requests(), between))
        assert runner.buckets == make_buckets(SHAPES)
        alone = [request for request in requests() if request.request_id == "r1"]
        check_all(judge, alone, drive(make_core(runner, ahead=ahead), alone))
    assert {(StepKind.DECODE, 4), (StepKind.DECODE, 8), (StepKind.MIXED, 32)} <= used


def test_they_are_made_in_a_thread_and_no_step_compiles() -> None:
    runner = JaxRunner(MODEL, SHAPES)
    runner.warm_up(when="first")
    before = len(runner.stages[0].programs.made)
    runner.sizes.start()
    core, rounds = make_core(runner, ahead=1), 0

    def between(core: EngineCore, number: int) -> None:
        assert runner.status().compiles_after_ready == 0

    while runner.buckets != make_buckets(SHAPES) or rounds == 0:
        drive(core, [replace(one, request_id=f"{one.request_id}-{rounds}") for one in requests()], between)
        rounds += 1
        assert rounds < 1000
    assert len(runner.stages[0].programs.made) == before + len(MISSING)
    assert runner.status().compiles_after_ready == 0
    assert runner.late_programs.count == 0
    runner.close()


def test_a_size_whose_program_fails_is_left_out(compiling: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    compiling["fails"] = ("decode", 4)
    runner = started()
    with caplog.at_level(logging.WARNING):
        for size in MISSING:
            runner.sizes.add(*size)
    assert [record.getMessage() for record in caplog.records] == [
        "rows 4: out of memory; steps are padded to a larger size"
    ]
    assert runner.buckets == make_buckets(SHAPES)._replace(rows=(1, 2, 8))
    check_all(Judge(MODEL), requests(), drive(make_core(runner), requests()))


def test_a_size_is_taken_to_last_as_long_as_the_next_larger(compiling: dict[str, Any]) -> None:
    runner = started()
    seconds = dict(runner.step_seconds)
    assert (StepKind.DECODE, 2) not in seconds
    runner.sizes.add("rows", 2)
    runner.sizes.add("tokens", 32)
    assert runner.step_seconds[StepKind.DECODE, 2] == seconds[StepKind.DECODE, 8]
    assert runner.step_seconds[StepKind.MIXED, 32] == seconds[StepKind.MIXED, 64]


def test_an_engine_that_ends_makes_no_more(compiling: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    runner, begun, goes_on = started(), threading.Event(), threading.Event()
    add = Programs.add

    def waiting(programs: Programs, name: Name) -> None:
        begun.set()
        goes_on.wait(60)
        add(programs, name)

    monkeypatch.setattr(Programs, "add", waiting)
    made = len(compiling["made"])
    runner.sizes.start()
    begun.wait(60)
    ending = threading.Thread(target=runner.close)
    ending.start()
    runner.sizes._stopped.wait(60)
    goes_on.set()
    ending.join(60)
    assert len(compiling["made"]) <= made + 1


def test_kept_programs_are_read_before_readiness(tmp_path: Path) -> None:
    def runner() -> JaxRunner:
        cache = CompileCache(tmp_path, b"key")
        return JaxRunner(MODEL, SHAPES, stores=[open_store(cache, MODEL, SHAPES, {})], options={})

    first = runner()
    first.warm_up(when="first")
    first.sizes.add("rows", 2)
    again = runner()
    again.warm_up(when="first")
    assert again.buckets == first.buckets != first_buckets(SHAPES)
