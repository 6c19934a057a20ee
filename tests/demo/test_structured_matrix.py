"""The demo model under grammars, every kind in every pair of circumstances: what has ended is valid, every token is
that of an engine without overlap, and nothing is compiled.

`python -m tests.demo.structured_matrix` prints the rows.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import combinations
from typing import Any

import pytest

from jaxinfer import LLM
from jaxinfer.runner.jax_runner import JaxRunner
from tests.demo.structured_matrix import (
    TABLE,
    check_rows,
    matrix,
)
from tests.runner.devices import run_on_devices
from tests.runner.failing_programs import FailingPrograms

FAILING = {"mixed": 2, "decode": 4, "masks": 9, "sample": 20}
"""Which call of each kind of program fails."""


def test_every_pair_of_circumstances_is_in_a_row() -> None:
    rows = [row.values for row in matrix()]
    for one, other in combinations(TABLE, 2):
        pairs = {(values[one], values[other]) for values in rows}
        assert len(pairs) == len(TABLE[one]) * len(TABLE[other]), (one, other)


@contextmanager
def nothing_compiles(llm: LLM) -> Iterator[None]:
    """Here."""
    before = llm.engine.stats().device.compiles_after_ready
    yield
    assert llm.engine.stats().device.compiles_after_ready == before


@pytest.mark.long
def test_ahead_of_the_device(engines: dict[bool, LLM]) -> None:
    with nothing_compiles(engines[True]):
        check_rows(engines[True], engines[False], "ahead")


@pytest.mark.long
def test_with_steps_that_fail(engines: dict[bool, LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engines[True].engine
    assert isinstance(engine.runner, JaxRunner)
    faults = engine.stats().core.step_faults
    for kind, at in FAILING.items():
        monkeypatch.setattr(
            engine.runner.stages[0], "programs", FailingPrograms(engine.runner.stages[0].programs, at, kind)
        )
    with nothing_compiles(engines[True]):
        check_rows(engines[True], engines[False], "step faults")
    assert engine.stats().core.step_faults - faults == len(FAILING)


@pytest.mark.long
def test_with_few_blocks(engines: dict[bool, LLM]) -> None:
    """As many as one request of the longest may take, and some."""
    with closing(LLM("demo", max_num_seqs=8, max_num_batched_tokens=64, max_model_len=448, num_blocks=32)) as llm:
        with nothing_compiles(llm):
            check_rows(llm, engines[False], "few blocks")
        assert llm.engine.stats().scheduler.preemptions > 0


@pytest.mark.long
def test_with_several_decode_steps_at_once(engines: dict[bool, LLM]) -> None:
    """Where no row is constrained."""
    with closing(LLM("demo", max_num_seqs=8, max_num_batched_tokens=64, decode_steps=4)) as llm:
        with nothing_compiles(llm):
            check_rows(llm, engines[False], "decode-steps 4")
        assert llm.engine.stats().steps.multi_step_steps > 0


def check_devices() -> None:
    common: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "compile": "lazy"}
    plain, llm = LLM("demo", overlap=False, **common), LLM("demo", mesh="tp2", **common)
    for _ in range(2):  # the second time more of the prompts is cached: other sizes of steps
        check_rows(llm, plain, "tp 2")
    with nothing_compiles(llm):
        check_rows(llm, plain, "tp 2")


@pytest.mark.long
def test_over_two_devices() -> None:
    run_on_devices(check_devices, 2)
