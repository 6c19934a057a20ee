"""InFlightSteps: steps that a runner was given and whose results have not been read."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from jaxinfer.engine.device.calls import CopyBlocks, InitSlots, Sample, SetHistory, SetMasks, Start
from jaxinfer.engine.device.runner import Drafts, Runner
from jaxinfer.engine.step.packing import Packer
from jaxinfer.engine.step.plan import StepKind, StepPlan, StepResult
from jaxinfer.engine.step.slot_init import SlotInit

ReadDrafts = Callable[[], Drafts]
BeforeSampling = Callable[[ReadDrafts | None], np.ndarray]
"""before_sampling(read) is called when a step's forward pass is under way; steps that were started before may be
collected there. read: waits for the step's drafts; None where it has none. Gives how many of them each row may keep,
int32 [rows]."""
_NO_ROWS = StepResult(np.zeros((0, 1), np.int32), np.zeros(0, np.int32), np.zeros(0, bool))


class StepFault(Exception):
    """A runner failed to dispatch or to collect a step; `__cause__` says how. Its text names the type of that error."""


class InFlightSteps:
    """Steps in the order of their dispatch. dispatched, collected: how many since the start, discarded ones in both."""

    def __init__(self, runner: Runner):
        self._runner = runner
        self._packer = Packer(runner.shapes, lambda: runner.buckets)
        self._plans: deque[StepPlan] = deque()
        self._started: deque[int | None] = deque()
        """The index of each, None for a plan without rows."""
        self.dispatched = 0
        self.collected = 0

    def __len__(self) -> int:
        return len(self._plans)

    def dispatch(self, plan: StepPlan, before_sampling: BeforeSampling | None = None) -> None:
        """Starts a step. Raises StepFault."""
        self._plans.append(plan)
        self.dispatched += 1
        with _step_faults():
            self._started.append(self.start(plan, before_sampling))

    def start(self, plan: StepPlan, before_sampling: BeforeSampling | None = None) -> int | None:
        """Packs a plan and hands it to the runner. Returns its index; None for a plan without rows."""
        if plan.admissions:
            self._init_slots(plan.admissions)
        if not plan.num_rows:
            return None
        if (copies := self._packer.copies(plan.copies)) is not None:
            self._runner.submit(CopyBlocks(copies))
        step = self._packer.pack(plan, masked=before_sampling is not None)
        self._runner.submit(Start(step, samples=before_sampling is None))
        if before_sampling is not None:
            drafts = step.kind is StepKind.SPECULATE
            counts = before_sampling((lambda: self._runner.read_drafts(step.index)) if drafts else None)
            self._runner.submit(Sample(step.index, counts if drafts else None))
        return step.index

    def _init_slots(self, admissions: Sequence[SlotInit]) -> None:
        for packed in self._packer.slots(admissions):
            self._runner.submit(InitSlots(packed))
        end = self._runner.shapes.max_model_len
        self.set_history([run for init in admissions for run in init.history(end)])

    def set_history(self, runs: Sequence[tuple[int, int, np.ndarray]]) -> None:
        """Starts to write tokens that slots have, as `Packer.history` takes them. Raises StepFault."""
        with _step_faults():
            for history in self._packer.history(runs):
                self._runner.submit(SetHistory(history))

    def set_masks(self, places: np.ndarray, rows: np.ndarray) -> None:
        """Starts to write masks, int32 [n, words], at places, int [n], as `Packer.masks` has them. Raises StepFault."""
        with _step_faults():
            for masks in self._packer.masks(places, rows):
                self._runner.submit(SetMasks(masks))

    def sample_for(self, slots: np.ndarray, epochs: np.ndarray) -> bool:
        """Return whether a step in flight samples for any of these slots in these epochs. The step that is being
        started does not count."""
        started = zip(self._plans, self._started, strict=False)
        return any(_samples_for(plan, slots, epochs) for plan, _ in started)

    def collect(self) -> tuple[StepPlan, StepResult]:
        """Waits for the oldest step, which stays in flight where it failed. Raises StepFault."""
        with _step_faults():
            result = self.read(self._started[0])
        self._started.popleft()
        self.collected += 1
        return self._plans.popleft(), result

    def read(self, index: int | None) -> StepResult:
        """Waits for what `start` has started."""
        return _NO_ROWS if index is None else self._runner.collect(index)

    def discard(self) -> list[StepPlan]:
        """Discards every step: their results will not be read."""
        plans = list(self._plans)
        self._plans.clear()
        self._started.clear()
        self.collected = self.dispatched
        return plans


@contextmanager
def _step_faults() -> Iterator[None]:
    """Turn what a runner raises into a StepFault."""
    try:
        yield
    except StepFault:
        raise
    except Exception as error:
        raise StepFault(type(error).__name__) from error


def _samples_for(plan: StepPlan, slots: np.ndarray, epochs: np.ndarray) -> bool:
    wanted = dict(zip(slots.tolist(), epochs.tolist(), strict=True))
    sampling = plan.samples > 0
    own = zip(plan.slots[sampling].tolist(), plan.epochs[sampling].tolist(), strict=True)
    return any(wanted.get(slot) == epoch for slot, epoch in own)
