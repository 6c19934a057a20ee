"""SimulatedRunner: a device in NumPy that keeps the step contract honest, and costs what it is told to.

It stores token ids where a model stores keys and values, and draws each next token from what it reads
back through the block tables: a wrong block, a block reused too early or a host array that changed under
a step in flight gives a wrong token. It reads the same packed arrays that device programs read.
"""

import queue
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxinfer.engine.device.runner import DeviceMemory, LatePrograms
from jaxinfer.engine.step.layouts import Layouts
from jaxinfer.engine.step.packed import PackedForward, PackedMultiStep, PackedStep
from jaxinfer.engine.step.plan import LogprobArrays, StepKind, StepResult
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.sampling import MAX_LOGPROBS, MAX_STOP_TOKEN_IDS

_NEVER_WRITTEN = -(2**20)


def draw(visible: Sequence[np.ndarray], position: int, seed: int, index: int, vocab_size: int) -> int:
    """The token that follows `position`, from the tokens that each KV group sees up to there."""
    mask = (1 << 64) - 1
    state = (seed * 1_000_003 + index * 7_919 + position) & mask
    for tokens in visible:
        weights = np.arange(len(tokens), 0, -1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        content = int(((tokens.astype(np.uint64) + np.uint64(1)) * weights).sum())
        state = (state * 0xD1342543DE82EF95 + content) & mask
        state ^= state >> 29
    return state % vocab_size


class _Step(NamedTuple):
    inits: list[np.ndarray]
    packed: PackedStep
    deadline: float


class SimulatedRunner:
    """A Runner without a device.

    step_seconds: None runs a step when it is collected; else a thread runs it and its result is there
    that long after the step before it (or its own dispatch, where the device was idle). `draws=False`
    makes every token 0 and skips all reading, for measuring the host alone.
    """

    # There is nothing to compile.
    compiles_after_ready = 0
    late_programs = LatePrograms()
    compiling = False

    def __init__(self, shapes: EngineShapes, *, step_seconds: float | None = None, draws: bool = True):
        self.shapes = shapes
        self._layouts = Layouts(shapes)
        self._inits: list[np.ndarray] = []
        self._draws = draws
        self._step_seconds = step_seconds
        self._thread: threading.Thread | None = None
        self._start()

    def init_slots(self, packed: np.ndarray) -> None:
        self._inits.append(packed)

    def forward(self, step: PackedForward) -> None:
        """Nothing: reading and drawing are one here, and `sample` starts both."""

    def sample(self, step: PackedForward, forwarded: None) -> Any:
        return self._begin(step)

    def decode_steps(self, step: PackedMultiStep) -> Any:
        return self._begin(step)

    def _begin(self, packed: PackedStep) -> _Step:
        # Absolute deadlines: a late wake-up delays one step's result and not the device.
        self._busy_until = max(time.perf_counter(), self._busy_until) + (self._step_seconds or 0.0)
        step = _Step(self._inits, packed, self._busy_until)
        self._inits = []
        if self._thread is not None:
            self._work.put(step)
        return step

    def collect(self, handle: _Step) -> StepResult:
        if self._thread is None:
            return self._run(handle)
        result = self._done.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def reset(self) -> None:
        """Lets the steps in flight end, and forgets them with everything that was written."""
        self.close()
        self._start()

    def expert_load(self) -> None:
        """There are no experts."""

    def memory(self) -> DeviceMemory:
        """That of the arrays that stand for KV blocks."""
        used = sum(blocks.nbytes for blocks in self.kv)
        return DeviceMemory(used, used, used)

    def close(self) -> None:
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _start(self) -> None:
        shapes = self.shapes
        slots, width = shapes.num_slots, shapes.blocks_per_row
        self.kv = [np.full((g.num_blocks, shapes.block_size), _NEVER_WRITTEN, np.int64) for g in shapes.groups]
        self.tables = np.zeros((len(shapes.groups), slots, width), np.int32)
        self.length = np.zeros(slots, np.int32)
        self.last_token = np.zeros(slots, np.int32)
        self._seed = np.zeros(slots, np.int64)
        self._sequence_index = np.zeros(slots, np.int64)
        self._stop_ids = np.full((slots, MAX_STOP_TOKEN_IDS), -1, np.int32)
        self._inits.clear()
        self._busy_until = 0.0
        self._work: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[StepResult | BaseException] = queue.SimpleQueue()
        if self._step_seconds is not None:
            self._thread = threading.Thread(target=self._run_thread, name="simulated-device", daemon=True)
            self._thread.start()

    def _run_thread(self) -> None:
        while (step := self._work.get()) is not None:
            try:
                result: StepResult | BaseException = self._run(step)
            except BaseException as error:
                result = error
            time.sleep(max(0.0, step.deadline - time.perf_counter()))
            self._done.put(result)

    # The three programs

    def _run(self, step: _Step) -> StepResult:
        for packed in step.inits:
            self._init_slots(packed)
        packed = step.packed
        if isinstance(packed, PackedMultiStep):
            return packed.result(*self._multi_step(packed))
        if not self._draws:
            return packed.result(np.zeros(packed.num_scored, np.int32), None)
        tokens, targets = self._decode(packed) if packed.kind is StepKind.DECODE else self._mixed(packed)
        logprobs = _fake_logprobs(np.where(targets >= 0, targets, tokens)) if packed.logprobs else None
        return packed.result(tokens[: packed.num_scored], logprobs)

    def _init_slots(self, packed: np.ndarray) -> None:
        view = self._layouts.admit.views(packed)
        slots = view["slot"]
        self.length[slots] = view["length"]
        self.last_token[slots] = view["last_token"]
        self._seed[slots] = (view["seed_high"].astype(np.int64) << 32) | (
            view["seed_low"].astype(np.int64) & 0xFFFFFFFF
        )
        self._sequence_index[slots] = view["sequence_index"]
        self._stop_ids[slots] = view["stop_ids"]
        self.tables[:, slots] = view["tables"]

    def _decode(self, step: PackedForward) -> tuple[np.ndarray, np.ndarray]:
        view = self._layouts.decode(step.bucket).views(step.array)
        slots = view["slots"]
        self._change_blocks(view)
        self._write(slots, self.length[slots], self.last_token[slots])
        positions = self.length[slots].copy()
        tokens = np.array([self._draw(slot, position) for slot, position in zip(slots, positions, strict=True)])
        return tokens.astype(np.int32), np.full(step.bucket, -1, np.int32)

    def _multi_step(self, step: PackedMultiStep) -> tuple[np.ndarray, np.ndarray]:
        view = self._layouts.multi_step(step.bucket).views(step.array)
        slots, most = view["slots"], view["counts"]
        tokens, counts = np.zeros((len(slots), self.shapes.decode_steps), np.int32), np.zeros(len(slots), np.int32)
        if not self._draws:
            return tokens, most.copy()
        self._change_blocks(view)
        left = most > 0
        for at in range(most.max(initial=0)):
            open_slots = np.where(left, slots, self.shapes.scratch_slot)
            self._write(open_slots, self.length[open_slots], self.last_token[open_slots])
            for row in np.flatnonzero(left).tolist():
                token = self._draw(slots[row], int(self.length[slots[row]]))
                tokens[row, at], counts[row] = token, at + 1
                left[row] = at + 1 < most[row] and token not in self._stop_ids[slots[row]]
        return tokens, counts

    def _mixed(self, step: PackedForward) -> tuple[np.ndarray, np.ndarray]:
        view = self._layouts.mixed(step.bucket).views(step.array)
        held = int(view["num_decode"][0])
        slots, starts, counts = view["slots"], view["starts"].copy(), view["counts"]
        starts[:held] = self.length[slots[:held]]
        row = np.repeat(np.arange(len(slots)), counts)
        first = np.cumsum(counts) - counts
        positions = starts[row] + np.arange(len(row)) - first[row]
        tokens = view["tokens"][: len(row)].copy()
        tokens[:held] = self.last_token[slots[:held]]
        self._change_blocks(view)
        self._write(slots[row], positions, tokens)
        drawn = np.zeros(len(view["draws"]), np.int32)
        for i in np.flatnonzero(view["draws"]):
            drawn[i] = self._draw(slots[view["scored_row"][i]], positions[view["scored_token"][i]])
        return drawn, view["targets"]

    def _change_blocks(self, view: dict[str, np.ndarray]) -> None:
        for group, table in enumerate(self.tables):
            source, destination = view["copies"][group].T
            self.kv[group][destination] = self.kv[group][source]
            slot, index, block = view["updates"][group].T
            table[slot, index] = block

    def _write(self, slots: np.ndarray, positions: np.ndarray, tokens: np.ndarray) -> None:
        size = self.shapes.block_size
        for table, kv in zip(self.tables, self.kv, strict=True):
            kv[table[slots, positions // size], positions % size] = tokens

    def _draw(self, slot: int, position: int) -> int:
        if slot == self.shapes.scratch_slot:
            return 0
        visible = [self._read(group, slot, position) for group in range(len(self.kv))]
        seed, index = int(self._seed[slot]), int(self._sequence_index[slot])
        token = draw(visible, int(position), seed, index, self.shapes.vocab_size)
        self.last_token[slot] = token
        self.length[slot] = position + 1
        return token

    def _read(self, group: int, slot: int, position: int) -> np.ndarray:
        size, window = self.shapes.block_size, self.shapes.groups[group].window
        first = 0 if window is None else max(0, position - window + 1)
        positions = np.arange(first, position + 1)
        return self.kv[group][self.tables[group, slot, positions // size], positions % size]


def _fake_logprobs(tokens: np.ndarray) -> LogprobArrays:
    """Numbers that tell which token they belong to."""
    top = tokens[:, None] + np.arange(MAX_LOGPROBS)
    return LogprobArrays(
        logprobs=-(tokens % 97).astype(np.float32),
        ranks=(tokens % 5 + 1).astype(np.int32),
        top_ids=top.astype(np.int32),
        top_logprobs=-(top % 97).astype(np.float32),
    )
