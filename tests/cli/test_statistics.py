"""What a generation took, without the programs that were prepared on the way."""

import pytest

from jaxinfer.cli import statistics
from jaxinfer.cli.settings import ONE_AT_A_TIME, parse_settings
from jaxinfer.cli.statistics import GenerationClock
from jaxinfer.engine.device.runner import LatePrograms
from jaxinfer.text import ChoiceDelta


def delta(tokens: int) -> ChoiceDelta:
    return ChoiceDelta(0, "x", [1] * tokens, None, None, None, None)


def line(monkeypatch: pytest.MonkeyPatch, moments: list[tuple[float, int, float]]) -> str:
    """The line of a prompt of 8 tokens; each moment: the time, and programs and seconds of making them by then."""
    late = iter([LatePrograms(*moment[1:]) for moment in moments])
    times = iter([moment[0] for moment in moments])
    monkeypatch.setattr(statistics.time, "perf_counter", lambda: next(times))
    clock = GenerationClock(8, lambda: next(late))
    for _ in moments[1:]:
        clock.push(delta(1))
    return clock.line()


def test_a_warm_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    told = line(monkeypatch, [(10.0, 3, 5.0), (10.5, 3, 5.0), (10.75, 3, 5.0), (11.0, 3, 5.0)])
    assert told == "prompt: 8 tokens, 500 ms, 16.0 tokens/s · output: 3 tokens, 500 ms, 4.0 tokens/s"


def test_programs_on_the_way_are_told_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    told = line(monkeypatch, [(10.0, 1, 1.0), (12.5, 3, 3.0), (13.75, 4, 4.0), (14.0, 4, 4.0)])
    assert told == (
        "prompt: 8 tokens, 500 ms, 16.0 tokens/s · output: 3 tokens, 500 ms, 4.0 tokens/s"
        " · not counted: 3 programs prepared on the way, 3.00 s"
    )


@pytest.mark.parametrize(
    ("arguments", "when"), [([], "lazy"), (["--compile", "first"], "first"), (["--compile", "lazy"], "lazy")]
)
def test_one_persons_commands_compile_what_they_need(arguments: list[str], when: str) -> None:
    assert parse_settings("chat", {}, arguments, engine=ONE_AT_A_TIME)[0].runner.compile == when


def test_a_file_may_say_otherwise(tmp_path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("compile: all\n")
    assert parse_settings("chat", {}, ["--config", str(file)], engine=ONE_AT_A_TIME)[0].runner.compile == "all"
    assert parse_settings("serve", {}, [])[0].runner.compile == "auto"
