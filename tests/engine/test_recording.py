"""Recordings of faults: the same error comes at the same call when they are replayed."""

from pathlib import Path

import msgspec
import pytest

from jaxinfer.engine.device.calls import Reset
from jaxinfer.engine.device.recording import KEPT, RecordingRunner, read_recording, replay
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.engine.step.plan import StepResult
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.speculation import Speculation
from jaxinfer.version import __version__
from tests.engine.small import VOCABULARY, ask, run, small_core, small_shapes
from tests.engine.toy_grammar import Toy, ToyConstraints

UNLUCKY = 13


class Superstitious(SimulatedRunner):
    """A device of which a step fails that draws a token: what fails depends on all that came before."""

    def result(self, started: object) -> StepResult:
        result = super().result(started)  # type: ignore[arg-type]
        for row, (tokens, count) in enumerate(zip(result.tokens, result.counts, strict=True)):
            if UNLUCKY in tokens[:count]:
                raise ValueError(f"row {row} of {len(result.tokens)} drew {UNLUCKY}")
        return result


class Failing(SimulatedRunner):
    """A device of which the step fails that is collected after so many."""

    def __init__(self, shapes: EngineShapes, after: int):
        super().__init__(shapes)
        self._left = after

    def result(self, started: object) -> StepResult:
        self._left -= 1
        if not self._left:
            raise ValueError("a step fails")
        return super().result(started)  # type: ignore[arg-type]


SHAPES = {
    "plain": small_shapes(),
    "drafts": small_shapes(drafting=Speculation(3, 1, 2)),
    "shards": small_shapes(shards=2),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_same_error_comes_at_the_same_call(name: str, tmp_path: Path) -> None:
    device = Superstitious(SHAPES[name], hit_rate=0.5)
    core = small_core(RecordingRunner(device, tmp_path), ahead=1, constraints=ToyConstraints(VOCABULARY))
    for i in range(6):
        grammar = Toy(i, 12).constraint if i % 3 == 2 else None
        core.add_request(ask(f"r{i}", 3 + i, 30, seed=i, structured_outputs=grammar))
    run(core)
    files = sorted(tmp_path.iterdir())
    assert len(files) == core.stats().core.step_faults > 1
    for file in files:
        recording = read_recording(file)
        assert recording.version == __version__
        assert recording.fault.entry == len(recording.entries) - 1
        assert recording.fault.error.startswith("ValueError: row ")
        assert replay(Superstitious(SHAPES[name], hit_rate=0.5), recording) == recording.fault
        assert replay(SimulatedRunner(SHAPES[name], hit_rate=0.5), recording) is None
        device.submit(Reset())
        assert replay(device, recording) == recording.fault


def test_as_many_calls_are_kept_as_is_said(tmp_path: Path) -> None:
    runner = RecordingRunner(SimulatedRunner(small_shapes()), tmp_path)
    core = small_core(runner)
    while core.in_flight.dispatched <= KEPT:
        core.add_request(ask(f"r{core.in_flight.dispatched}", 5, 40))
        run(core)
    with pytest.raises(KeyError):
        runner.collect(-1)
    (file,) = tmp_path.iterdir()
    assert len(read_recording(file).entries) == KEPT
    assert read_recording(file).dropped > KEPT


def test_a_recording_whose_beginning_is_missing_is_replayed_from_the_first_whole_step(tmp_path: Path) -> None:
    device = Failing(small_shapes(), after=560)
    core = small_core(RecordingRunner(device, tmp_path), ahead=1)
    for i in range(200):
        core.add_request(ask(f"r{i}", 5, 12))
    run(core)
    (file,) = tmp_path.iterdir()
    recording = read_recording(file)
    assert recording.dropped > 0
    steps = len([entry for entry in recording.entries if entry.asked == "collect"])
    found = replay(Failing(small_shapes(), after=steps - 2), recording)  # the first one or two are not whole
    assert found is not None
    assert found.error == recording.fault.error
    assert found.entry >= len(recording.entries) - 8


def test_a_folder_that_cannot_be_written_changes_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    runner = RecordingRunner(SimulatedRunner(small_shapes()), tmp_path / "file")
    with pytest.raises(KeyError):
        runner.collect(-1)
    assert "the calls before a fault could not be written" in caplog.text


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(msgspec.msgpack.encode({"version": 1}))
    with pytest.raises(ValueError, match="version"):
        read_recording(tmp_path / "other")
