"""A pipeline that takes no time: when each stage of a simulated device would compute which step, by a clock of its own.

A stage computes one step after another, a step passes the stages in order, and the first begins it when the host has
dispatched it and the tokens that its rows need are back from the last.
"""

from collections.abc import Callable
from typing import NamedTuple

from jaxinfer.engine.step.packed import PackedStep


class StageRun(NamedTuple):
    """One stage's part of a step: the step's index in the order of dispatch, and seconds of begin and end."""

    step: int
    stage: int
    begin: float
    end: float


class SimulatedPipeline:
    """The clock of a simulated device of several stages.

    seconds(tokens): what each stage takes for a step of so many tokens. now: seconds of this clock; results move it,
    and nothing else: the host takes no time. runs: all that was computed, a step after another.
    """

    def __init__(self, stages: int, seconds: Callable[[int], float]):
        self.stages = stages
        self.now = 0.0
        self.runs: list[StageRun] = []
        self._seconds = seconds
        self._free = [0.0] * stages
        self._ends: dict[int, float] = {}

    def clock(self) -> int:
        """Nanoseconds, as an engine takes its clock."""
        return round(self.now * 1e9)

    def begin(self, step: PackedStep, tokens: int) -> float:
        """Dispatches a step now; returns when it will be done."""
        taken = self._seconds(tokens)
        ready = max(self.now, self._ends.get(step.needs, 0.0))
        for stage in range(self.stages):
            begin = max(ready, self._free[stage])
            self._free[stage] = ready = begin + taken
            self.runs.append(StageRun(step.index, stage, begin, ready))
        self._ends[step.index] = ready
        self._ends.pop(step.index - 4 * self.stages, None)
        return ready

    def wait(self, done: float) -> None:
        """The host reads a result that is there from `done` on."""
        self.now = max(self.now, done)

    def busy(self, start: float, end: float) -> list[float]:
        """Return, for each stage, the share of the time from `start` to `end` in which it computes."""
        shares = [0.0] * self.stages
        for run in self.runs:
            shares[run.stage] += max(0.0, min(run.end, end) - max(run.begin, start))
        return [share / (end - start) for share in shares]
