"""The record of what compiled: the very same is found again, and nothing else is."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxinfer_kernels.check import record as record_module
from jaxinfer_kernels.check import worker
from jaxinfer_kernels.check.cases import Case, Kept, Lowering
from jaxinfer_kernels.check.record import Record, digest_of
from jaxinfer_kernels.check.results import Result
from jaxinfer_kernels.check.table import progress, render
from jaxinfer_kernels.check.targets import FOLDER, Target, read_target

TARGET = read_target(FOLDER, "v6e")
OK = Result("v6e", "double", "small", "ok", (), 1.26, 512, 0, vmem=64, digest="of double")


def lowering(factor: float = 2.0, options: dict[str, Any] | None = None) -> Lowering:
    return Lowering(jax.jit(lambda x: x * factor).lower(jnp.zeros(8)), options)


def case(**changes: Any) -> Case:
    return Case("double", "small", lambda devices: lowering())._replace(**changes)


def test_the_same_program_has_the_same_digest():
    assert digest_of(case(), TARGET, lowering()) == digest_of(case(), TARGET, lowering())


@pytest.mark.parametrize(
    "other",
    [
        lambda: digest_of(case(), TARGET, lowering(3.0)),
        lambda: digest_of(case(), TARGET, lowering(options={"xla_some": "1"})),
        lambda: digest_of(case(kept=(Kept("the KV pages", 1 << 20),)), TARGET, lowering()),
        lambda: digest_of(case(donated=1 << 20), TARGET, lowering()),
        lambda: digest_of(case(wgmma="attend"), TARGET, lowering()),
        lambda: digest_of(case(), read_target(FOLDER, "v5e"), lowering()),
        lambda: digest_of(case(), replace(TARGET, hbm_bytes=1), lowering()),
    ],
)
def test_what_differs_has_another(other: Callable[[], str]):
    assert other() != digest_of(case(), TARGET, lowering())


def test_another_compiler_is_another_digest(monkeypatch: pytest.MonkeyPatch):
    before = digest_of(case(), TARGET, lowering())
    monkeypatch.setattr(record_module, "_version", lambda package: "9.9")
    assert digest_of(case(), TARGET, lowering()) != before


def test_what_is_written_is_found_by_its_digest_alone(tmp_path: Path):
    file = tmp_path / "folder" / "record.json"
    Record(()).write(file, [OK])
    known = Record.read(file)
    assert known.find("v6e", case(), "of double") == OK._replace(seconds=1.3, recorded=True)
    assert known.find("v6e", case(), "of another") is None
    assert known.find("v5e", case(), "of double") is None
    assert known.find("v6e", case(shape="large"), "of double") is None


def test_what_fails_is_forgotten_and_the_rest_is_kept(tmp_path: Path):
    file = tmp_path / "record.json"
    Record([OK, OK._replace(program="triple")]).write(file, [OK._replace(state="failed", problems=("spills",))])
    assert [row["program"] for row in json.loads(file.read_text())] == ["triple"]


def test_a_file_that_is_not_there_has_nothing(tmp_path: Path):
    assert Record.read(tmp_path / "none").find("v6e", case(), "of double") is None


def test_a_case_of_the_record_is_not_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Nor judged anew; one that changed is both."""
    compiled: list[float] = []

    class Counted(Lowering):
        def compile(self) -> Any:
            compiled.append(1)

    def inspect(case: Case, target: Target, executable: Any, seconds: float, dump: Path, kernels: Any) -> Result:
        return Result(target.name, case.program, case.shape, "ok", (), seconds)

    monkeypatch.setattr(worker, "inspect", inspect)
    monkeypatch.setattr(Target, "devices", lambda self: [])
    monkeypatch.setattr(worker, "stable_text", lambda: None)
    factors = [2.0, 2.0, 3.0]
    results: list[Result] = []
    for factor in factors:
        out = io.StringIO()
        cases = [case(lower=lambda devices, factor=factor: Counted(*lowering(factor)))]
        worker.compile_target(TARGET, lambda *_, cases=cases: cases, False, "", tmp_path / "dump", Record(results), out)
        (told,) = [
            json.loads(line.removeprefix(worker.MARK)) for line in out.getvalue().splitlines() if "result" in line
        ]
        results.append(Result(**{**told["result"], "problems": ()}))
    assert [result.recorded for result in results] == [False, True, False]
    assert len(compiled) == 2


def test_the_table_says_what_was_not_compiled_again():
    row = OK._replace(recorded=True)
    assert render([OK, row]).splitlines()[-1] == "2 ok (1 as recorded, not compiled again), 0 failed, 0 not compiled"
    assert progress(row) == "v6e: double, small: ok, as recorded"
