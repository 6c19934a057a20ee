"""Runner: the device side, as the engine knows it."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxinfer.engine.step.packed import PackedBurst, PackedForward, PackedHistory, PackedMasks
from jaxinfer.engine.step.plan import StepKind, StepResult
from jaxinfer.engine.step.shapes import EngineShapes


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


class Runner(Protocol):
    """Runs calls in order. None of them reads host memory that may change: arrays that it is given are its own.

    An Exception that a call raises is a step fault: no handle given out before is collected any more, and `reset` comes
    next.
    """

    @property
    def shapes(self) -> EngineShapes:
        """Sizes that every plan must keep to; constant."""
        ...

    @property
    def compiles_after_ready(self) -> int:
        """Compilations since the runner was ready; any is a defect, unless programs are compiled lazily."""
        ...

    @property
    def late_programs(self) -> LatePrograms:
        """Programs that were compiled, or read from the cache, during a step. Read in any thread."""
        ...

    @property
    def compiling(self) -> bool:
        """True while a program is made in the midst of a step. Read in any thread."""
        ...

    @property
    def step_seconds(self) -> Mapping[tuple[StepKind, int], float]:
        """Seconds of a forward pass, by kind and bucket, as measured before readiness; empty if nothing was
        measured."""
        ...

    def init_slots(self, packed: np.ndarray) -> None:
        """Starts to write the state of slots that sequences have got: int32, as `Layouts.admit` has it."""
        ...

    def set_history(self, packed: PackedHistory) -> None:
        """Starts to write tokens that slots have: steps that are started later draft from them."""
        ...

    def copy_blocks(self, packed: np.ndarray) -> None:
        """Starts to copy blocks, before the step that needs them: int32, as `Layouts.copies` has it, a section a
        shard."""
        ...

    def forward(self, step: PackedForward) -> Any:
        """Starts the forward pass of a step, and returns a handle for `sample` at once."""
        ...

    def sample(self, step: PackedForward, forwarded: Any) -> Any:
        """Starts the sampling of a step, and returns a handle at once. forwarded: what `forward` returned for it."""
        ...

    def set_masks(self, packed: PackedMasks) -> None:
        """Starts to write which tokens slots may draw: samples that are started later draw under them."""
        ...

    def burst(self, step: PackedBurst) -> Any:
        """Starts a step by which rows may get several tokens, and returns a handle at once."""
        ...

    def draft(self, step: PackedBurst) -> Any:
        """Starts to draft for a step that has rows under masks, and its forward pass, and returns a handle at once."""
        ...

    def read_drafts(self, step: PackedBurst, drafted: Any) -> Drafts:
        """Waits for the drafts, not for the forward pass. drafted: what `draft` returned for it."""
        ...

    def verify(self, step: PackedBurst, drafted: Any, counts: np.ndarray) -> Any:
        """Starts to sample, and returns a handle for `collect` at once. counts: drafts of each row that may be kept,
        int32 [rows]: up to there its slot has masks of the positions that are drawn."""
        ...

    def collect(self, handle: Any) -> StepResult:
        """Waits for a step's results. Handles are collected in the order in which they were given out."""
        ...

    def reset(self) -> None:
        """Drops steps in flight and makes blocks and slot state anew; weights and programs stay.

        Raises what is wrong where the device is gone.
        """
        ...

    def memory(self) -> tuple[DeviceMemory, ...]:
        """A reading of each device's memory. Called in any thread."""
        ...

    def expert_load(self) -> ExpertTokens | None:
        """Return the expert load of the steps that were collected; None for a model without experts. Safe in any
        thread; waits for no step."""
        ...

    def close(self) -> None:
        """Frees the device."""
        ...
