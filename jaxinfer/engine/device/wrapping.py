"""WrappingRunner: a Runner that passes everything on to another, for those that change some of it."""

from collections.abc import Mapping

from jaxinfer.engine.device.calls import Call
from jaxinfer.engine.device.runner import Drafts, LatePrograms, Runner, RunnerStatus
from jaxinfer.engine.step.buckets import Buckets
from jaxinfer.engine.step.plan import StepKind, StepResult
from jaxinfer.engine.step.shapes import EngineShapes


class WrappingRunner:
    """Does as `runner` does."""

    def __init__(self, runner: Runner):
        self._runner = runner

    @property
    def shapes(self) -> EngineShapes:
        return self._runner.shapes

    @property
    def buckets(self) -> Buckets:
        return self._runner.buckets

    @property
    def step_seconds(self) -> Mapping[tuple[StepKind, int], float]:
        return self._runner.step_seconds

    @property
    def compiling(self) -> bool:
        return self._runner.compiling

    @property
    def late_programs(self) -> LatePrograms:
        return self._runner.late_programs

    def submit(self, call: Call) -> None:
        self._runner.submit(call)

    def read_drafts(self, index: int) -> Drafts:
        return self._runner.read_drafts(index)

    def collect(self, index: int) -> StepResult:
        return self._runner.collect(index)

    def status(self) -> RunnerStatus:
        return self._runner.status()

    def close(self) -> None:
        self._runner.close()
