"""Steps that fail on real programs, which have taken the donated arrays and given nothing back."""

import gc
import itertools
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxinfer.engine import core as engine_core
from jaxinfer.engine.device.calls import Reset
from jaxinfer.engine.device.recording import RecordingRunner, read_recording, replay
from jaxinfer.engine.device.runner import Runner
from jaxinfer.engine.device.wrapping import WrappingRunner
from jaxinfer.engine.step.plan import StepResult
from jaxinfer.engine.types import GenerateRequest
from jaxinfer.runner.jax_runner import JaxRunner
from tests.engine.outputs import Outputs
from tests.runner.failing_programs import failing
from tests.runner.tiny import (
    Judge,
    check_all,
    check_logprobs,
    drive,
    greedy,
    make_core,
    random_prompt,
    seeded,
    tiny_model,
    tiny_shapes,
)


@cache
def runner() -> JaxRunner:
    """Two KV groups, prompts of several chunks, too few blocks for all at once."""
    model = tiny_model((None, 12))
    made = JaxRunner(model, tiny_shapes(model, max_num_seqs=4, max_num_batched_tokens=32, blocks=30, admit_slots=2))
    made.warm_up()
    return made


def workload() -> list[GenerateRequest]:
    rng = np.random.default_rng(3)
    shared = random_prompt(rng, 40)
    return [
        GenerateRequest("greedy", shared, greedy(10, logprobs=2)),
        GenerateRequest("forked", shared[:23], seeded(8, 5, n=3)),
        GenerateRequest("scored", shared[:19], greedy(6, prompt_logprobs=1)),
        GenerateRequest("other", random_prompt(rng, 9), seeded(12, 8, logprobs=1)),
        GenerateRequest("short", [7], seeded(9, -4, n=2)),
    ]


def tokens_of(outputs: Outputs) -> dict[tuple[str, int], list[int]]:
    return {key: output.tokens for key, output in outputs.items()}


@cache
def without_faults() -> dict[tuple[str, int], list[int]]:
    runner().submit(Reset())
    outputs = drive(make_core(runner()), workload())
    check_all(Judge(runner().stages[0].model), workload(), outputs)
    return tokens_of(outputs)


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("kind", ["admit", pytest.param("mixed", marks=pytest.mark.smoke), "decode", "sample"])
def test_a_program_that_fails_changes_no_stream_and_compiles_nothing(kind, ahead, compiles) -> None:
    expected, device = without_faults(), runner()
    for at in (1, 2, 4):
        jax.clear_caches()
        compiles.clear()
        core = make_core(device, ahead=ahead)
        with failing(device, at, kind):
            outputs = drive(core, workload())
        assert core.stats().core.step_faults == 1
        assert tokens_of(outputs) == expected
        assert compiles == []
    for request in workload():
        if request.sampling.n == 1:
            check_logprobs(Judge(device.stages[0].model), request, outputs[request.request_id, 0])


class LosingResults(WrappingRunner):
    """A runner of which some results cannot be read."""

    def __init__(self, runner: Runner):
        super().__init__(runner)
        self._numbers = itertools.count()

    def collect(self, index: int) -> StepResult:
        result = super().collect(index)
        if next(self._numbers) in (0, 5, 20, 30):
            raise RuntimeError("the result is lost")
        return result


def test_a_result_that_cannot_be_read_is_a_fault() -> None:
    expected = without_faults()
    core = make_core(LosingResults(runner()))
    assert tokens_of(drive(core, workload())) == expected
    assert core.stats().core.step_faults == 4


@pytest.mark.parametrize("kind", ["admit", "decode", "sample"])
def test_a_fault_is_replayed_from_its_recording(kind: str, tmp_path: Path) -> None:
    device = runner()
    device.submit(Reset())
    with failing(device, 3, kind):
        drive(make_core(RecordingRunner(device, tmp_path)), workload())
    (file,) = tmp_path.iterdir()
    recording = read_recording(file)
    assert recording.fault.error == "RuntimeError: the program failed"
    for at, fault in ((3, recording.fault), (100, None)):
        device.submit(Reset())
        with failing(device, at, kind):
            assert replay(device, recording) == fault
    device.submit(Reset())


def test_a_fault_leaves_no_memory_behind(monkeypatch) -> None:
    """Though arrays are held elsewhere, as by a traceback: they go before new ones are made."""
    without_faults()
    device, held = runner(), []
    make = device.stages[0]._make_slots

    def make_slots() -> Any:
        assert all(array.is_deleted() for array in held)
        assert not any(array.is_deleted() for array in device.stages[0].model.weights)
        return make()

    def reset() -> None:
        held.extend(
            jax.tree.leaves(
                (
                    device.stages[0].kv,
                    device.stages[0].slots.state,
                    device.stages[0].slots.params,
                    device.stages[0].slots.tables,
                )
            )
        )
        JaxRunner.reset(device)

    # (pytest keeps every record that is logged, and with it the frames of the error)
    monkeypatch.setattr(engine_core.log, "disabled", True)
    drive(make_core(device), workload())
    before = _live_bytes()
    monkeypatch.setattr(device.stages[0], "_make_slots", make_slots)
    monkeypatch.setattr(device, "reset", reset)
    core = make_core(device)
    with failing(device, 3, "sample"):
        drive(core, workload())
    assert core.stats().core.step_faults == 1
    assert held
    assert _live_bytes() == before


def _live_bytes() -> int:
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())
