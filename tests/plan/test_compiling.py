"""Processes that compile: their limits, what is kept of them, what is made of those that fail. None compiles here."""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from jaxinfer.config import EngineConfig, ModelConfig
from jaxinfer.model_config.registry import parse_config
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.plan import compiling
from jaxinfer.plan.chip import read_chip
from jaxinfer.plan.compiled import Compiled, ProgramName, Request
from jaxinfer.plan.compiling import Bounds, CompileAnswer, compile_programs, target_folder
from jaxinfer.plan.estimate import MeshPlan, plan_mesh
from tests.plan import failing_worker
from tests.runner.mesh_matrix import MODELS

NAMES: tuple[ProgramName, ...] = (("admit", 0), ("decode", 8), ("sample", 4))


def tiny_plan(**changes: object) -> MeshPlan:
    config = parse_config(MODELS["experts"] | changes)
    return plan_mesh(
        EngineConfig(load=ModelConfig(max_model_len=64)), config, MeshConfig({"tensor": 2}), "tp2", read_chip("v6e")
    )


def request_of(plan: MeshPlan, names: tuple[ProgramName, ...] = NAMES) -> Request:
    places = plan.mesh, plan.topology, str(target_folder())
    return Request(plan.model.config, "bfloat16", *places, plan.shapes, names)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes processes that have a fault. Returns what each process was asked for, a line a process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    log = tmp_path / "log"

    def started(fault: str = "none") -> Path:
        command = (sys.executable, "-m", failing_worker.__name__, str(log), fault)
        monkeypatch.setattr(compiling, "_COMMAND", command)
        return log

    return started


def test_each_program_is_told(worker) -> None:
    worker()
    heard: list[CompileAnswer] = []
    answers = compile_programs(request_of(tiny_plan()), Bounds(), heard.append)
    assert [answer.name for answer in answers] == list(NAMES)
    assert heard == answers
    found = answers[1].compiled
    assert found is not None
    assert (found.program, found.argument, found.alias, found.temporary) == ("decode 8", 2, 3, 5)
    assert found.collectives[0].count == 3
    assert not any(answer.kept for answer in answers)


def test_what_was_compiled_is_kept(worker) -> None:
    log = worker()
    first = compile_programs(request_of(tiny_plan(), NAMES[:2]), Bounds())
    second = compile_programs(request_of(tiny_plan()), Bounds())
    assert [answer.kept for answer in second] == [True, True, False]
    assert [answer.compiled for answer in second[:2]] == [answer.compiled for answer in first]
    assert log.read_text().splitlines() == ["admit, decode 8", "sample 4"]
    other = compile_programs(request_of(tiny_plan(num_attention_heads=16, num_key_value_heads=4)), Bounds())
    assert not any(answer.kept for answer in other)


def test_a_file_that_was_broken_is_compiled_again(worker, tmp_path: Path) -> None:
    worker()
    compile_programs(request_of(tiny_plan()), Bounds())
    for file in (tmp_path / "cache" / "jaxinfer" / "plan").iterdir():
        file.write_text(json.dumps({"program": "decode 8"}))
    assert not any(answer.kept for answer in compile_programs(request_of(tiny_plan()), Bounds()))


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("fault", "bounds", "problem"),
    [
        ("time", Bounds(seconds=3), "took more than 3 s"),
        ("memory", Bounds(bytes=512 << 20), "took more than 0.5 GiB of memory"),
        ("words", Bounds(seconds=3), "took more than 3 s"),
        ("hang", Bounds(), "the compiler ended with status -9"),
        ("death", Bounds(), "the compiler ended with status 1: it broke"),
        ("error", Bounds(), "no"),
    ],
    ids=["time", "memory", "words", "hang", "death", "error"],
)
def test_one_that_fails_leaves_the_others(worker, fault: str, bounds: Bounds, problem: str) -> None:
    log = worker(fault)
    begun = time.monotonic()
    answers = compile_programs(request_of(tiny_plan()), bounds)
    assert time.monotonic() - begun < 50
    assert [answer.compiled is None for answer in answers] == [False, True, False]
    assert answers[1].problem == problem
    processes = log.read_text().splitlines()
    assert processes == ["admit, decode 8, sample 4", "sample 4"] or problem == "no"
    again = compile_programs(request_of(tiny_plan()), bounds)
    assert [answer.kept for answer in again] == [True, False, True]


def test_json_of_a_program() -> None:
    found = Compiled("decode 8", 1.0, 2, 3, 4, 5, 6, ())
    assert Compiled.of(json.loads(json.dumps(found._asdict()))) == found


def test_the_key_follows_shapes_and_target() -> None:
    request = request_of(tiny_plan())
    target = compiling.read_target(target_folder(), "v6e")
    keys = {
        compiling._key(request, target, ("decode", 8)),
        compiling._key(request, target, ("decode", 16)),
        compiling._key(request._replace(dtype="float32"), target, ("decode", 8)),
        compiling._key(request._replace(shapes=replace(request.shapes, max_num_seqs=3)), target, ("decode", 8)),
        compiling._key(request, compiling.read_target(target_folder(), "v5e"), ("decode", 8)),
    }
    assert len(keys) == 5
