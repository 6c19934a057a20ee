"""Runner: the device side, as the engine knows it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from jaxinfer.engine.step.buckets import Buckets
from jaxinfer.engine.step.plan import StepKind, StepResult
from jaxinfer.engine.step.shapes import EngineShapes

if TYPE_CHECKING:  # programs are kept by what makes them, and calls do not
    from jaxinfer.engine.device.calls import Call


class DeviceMemory(NamedTuple):
    """Bytes of one device: in use, in use at most so far, and what may be; 0 where the platform does not tell."""

    used: int = 0
    peak: int = 0
    limit: int = 0


class ExpertTokens(NamedTuple):
    """Tokens, padding not counted. experts: int64 [layers with experts, E], of each expert so far. devices: [layers,
    devices], of each device that has some of the experts since they were last placed, those of copies shared equally;
    None where experts are not split. placed: how often they were placed anew."""

    experts: np.ndarray
    devices: np.ndarray | None = None
    placed: int = 0


class LatePrograms(NamedTuple):
    """Programs compiled during a step, and the seconds that it took."""

    count: int = 0
    seconds: float = 0.0


class Drafts(NamedTuple):
    """Drafts of the rows of a step. tokens: int32 [rows, K], of which a row has the first `counts`, int32 [rows]."""

    tokens: np.ndarray
    counts: np.ndarray


class RunnerStatus(NamedTuple):
    """A reading of a runner.

    memory: of each device. compiles_after_ready: compilations in the midst of a step since the runner was ready; any
    is a defect, unless programs are compiled lazily. expert_load: of the steps that were collected; None without
    experts.
    """

    memory: tuple[DeviceMemory, ...] = ()
    compiles_after_ready: int = 0
    expert_load: ExpertTokens | None = None


class Runner(Protocol):
    """Performs calls in order. It reads no host memory that may change: arrays that it is given are its own.

    An Exception that a call raises is a step fault: no step is collected any more, and `Reset` comes next.
    """

    @property
    def shapes(self) -> EngineShapes:
        """Sizes that every plan must keep to; constant."""
        ...

    @property
    def buckets(self) -> Buckets:
        """Sizes that steps may be packed for now: those of `first_buckets` at least. They become more, never fewer."""
        ...

    @property
    def step_seconds(self) -> Mapping[tuple[StepKind, int], float]:
        """Seconds of a forward pass, by kind and bucket, as measured before readiness, or of the next larger bucket
        that was; empty if nothing was measured."""
        ...

    @property
    def compiling(self) -> bool:
        """True while a program is made in the midst of a step. Read in any thread; never waits."""
        ...

    @property
    def late_programs(self) -> LatePrograms:
        """Programs that were compiled, or read from the cache, during a step. Read in any thread; never waits."""
        ...

    def submit(self, call: "Call") -> None:
        """Starts what a call asks for; does not wait for the device."""
        ...

    def read_drafts(self, index: int, /) -> Drafts:
        """Waits for the drafts of a step that waits for `Sample`, not for its forward pass."""
        ...

    def collect(self, index: int, /) -> StepResult:
        """Waits for the results of a step. Steps are collected in the order in which they were started."""
        ...

    def status(self) -> RunnerStatus:
        """A reading; it may wait for a step where experts have a load. Called in any thread."""
        ...

    def close(self) -> None:
        """Frees the device."""
        ...
