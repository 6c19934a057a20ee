"""Rig: a JaxRunner with made-up requests, whose steps are timed without a scheduler."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from jaxinfer.engine.device.in_flight import InFlightSteps
from jaxinfer.engine.step.packed import PackedStep
from jaxinfer.engine.step.packing import Packer
from jaxinfer.engine.step.plan import StepKind, StepPlan
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.engine.step.slot_init import SlotInit
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.programs.table import Name
from jaxinfer.runner.tuning.attention import choose_attention
from jaxinfer.sampling import SamplingParams
from jaxinfer.speculation import Speculation

_ENDLESS = 1 << 30
_NONE = np.zeros(0, np.int32)


def rig_shapes(
    config: DecoderConfig, *, rows: int, tokens: int, length: int, block_size: int, drafting: Speculation | None = None
) -> EngineShapes:
    """Sizes for steps of up to `rows` rows or `tokens` tokens, each row of at most `length` tokens."""
    blocks = 1 + rows * -(-length // block_size)
    return EngineShapes(
        max_num_seqs=rows,
        max_num_batched_tokens=max(rows, tokens),
        max_scored=rows,
        max_model_len=length,
        block_size=block_size,
        groups=tuple(KVGroup(group.window, blocks) for group in config.kv_groups),
        vocab_size=config.vocab_size,
        drafting=drafting,
    )


def rig_runner(model: LoadedModel, shapes: EngineShapes, cache: Path | None = None) -> JaxRunner:
    """A runner of the model with the attention that an engine would choose. cache: where choices are remembered."""
    return JaxRunner(choose_attention(model, shapes, "auto", cache), shapes)


def _programs(step: PackedStep) -> Iterator[Name]:
    yield step.kind.value, step.bucket
    yield "sample", step.scored_bucket


class Rig:
    """Steps over a runner: row i has slot i and blocks of its own. What ran on the runner before is overwritten."""

    def __init__(self, runner: JaxRunner):
        self._runner = runner
        self._steps = InFlightSteps(runner)

    def compile(self, decode: Sequence[int], prefill: Sequence[tuple[int, int]]) -> None:
        """Compiles what steps of so many rows, and prompts of (rows, tokens), need, side by side."""
        plans = [self._decode_plan(rows) for rows in decode] + [self._prefill_plan(*each) for each in prefill]
        steps = [Packer(self._runner.shapes).pack(plan) for plan in plans]
        names = {("admit", 0), *(name for step in steps for name in _programs(step))}
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._runner.stages[0].programs.__getitem__, names))

    def decode_seconds(self, rows: int, context: int, steps: int, repeats: int) -> list[float]:
        """Seconds a step of `rows` greedy rows, from `context` tokens a row on; an entry a timed run of `steps`.

        Steps are queued one behind the other, as the engine does one step ahead: what is timed is the device, where
        dispatch takes less. The first run is not counted.
        """
        plan = self._decode_plan(rows)

        def run() -> Any:
            return [self._steps.start(plan) for _ in range(steps)][-1]

        return self._time(lambda: self._admit(plan, context), run, repeats, steps)

    def drafting_seconds(self, rows: int, context: int, steps: int, repeats: int) -> list[float]:
        """Measure steps that draft, with as many drafts a row as the runner's shapes allow."""
        most = np.full(rows, self._runner.shapes.row_tokens, np.int32)
        plan = self._decode_plan(rows)._replace(kind=StepKind.SPECULATE, samples=most)

        def run() -> Any:
            return [self._steps.start(plan) for _ in range(steps)][-1]

        return self._time(lambda: self._admit(plan, context), run, repeats, steps)

    def prefill_seconds(self, rows: int, tokens: int, steps: int, repeats: int) -> list[float]:
        """Seconds a step that computes `rows` prompts of `tokens` tokens whole."""
        plan = self._prefill_plan(rows, tokens)

        def run() -> Any:
            return [self._steps.start(plan) for _ in range(steps)][-1]

        return self._time(lambda: self._admit(plan, 1), run, repeats, steps)

    def _time(self, prepare: Callable[[], Any], run: Callable[[], Any], repeats: int, steps: int) -> list[float]:
        seconds = []
        for _ in range(repeats + 1):
            self._runner.collect(prepare())
            start = time.perf_counter()
            self._runner.collect(run())
            seconds.append((time.perf_counter() - start) / steps)
        return seconds[1:]

    def _admit(self, plan: StepPlan, context: int) -> Any:
        """Puts the plan's rows to `context` tokens and runs it once, so that there is something to wait for."""
        admissions = tuple(self._admission(slot, context) for slot in range(plan.num_rows))
        return self._steps.start(plan._replace(admissions=admissions))

    def _admission(self, slot: int, length: int) -> SlotInit:
        return SlotInit(
            slot=slot,
            length=length - 1,
            last_token=1 + slot % (self._runner.shapes.vocab_size - 1),
            prompt_len=length,
            remaining=_ENDLESS,
            seed=slot,
            sequence_index=0,
            params=SamplingParams(max_tokens=None, temperature=0.0, ignore_eos=True),
            stop_ids=(),
            blocks=tuple(self._blocks(slot, group) for group in range(len(self._runner.shapes.groups))),
            counts=None,
        )

    def _blocks(self, slot: int, group: int) -> list[int]:
        """Block 0 is scratch; where blocks are fewer than rows ask for, rows share them."""
        width, count = self._runner.shapes.blocks_per_row, self._runner.shapes.groups[group].num_blocks
        return [1 + (slot * width + i) % (count - 1) for i in range(width)]

    def _decode_plan(self, rows: int) -> StepPlan:
        ones = np.ones(rows, np.int32)
        return self._plan(rows, ones, num_decode=rows, tokens=_NONE, targets=_NONE)

    def _prefill_plan(self, rows: int, tokens: int) -> StepPlan:
        ids = np.random.default_rng(0).integers(1, self._runner.shapes.vocab_size, rows * tokens).astype(np.int32)
        return self._plan(rows, np.full(rows, tokens, np.int32), 0, ids, np.full(rows, -1, np.int32))

    def _plan(
        self, rows: int, counts: np.ndarray, num_decode: int, tokens: np.ndarray, targets: np.ndarray
    ) -> StepPlan:
        slots, groups = np.arange(rows, dtype=np.int32), len(self._runner.shapes.groups)
        return StepPlan(
            kind=StepKind.DECODE if num_decode else StepKind.MIXED,
            index=0,
            admissions=(),
            slots=slots,
            epochs=slots,
            starts=np.zeros(rows, np.int32),
            counts=counts,
            scored=np.ones(rows, np.int32),
            samples=np.ones(rows, np.int32),
            unread=np.ones(rows, np.int32),
            num_decode=num_decode,
            tokens=tokens,
            targets=targets,
            block_updates=(np.zeros((0, 3), np.int32),) * groups,
            copies=(np.zeros((0, 2), np.int32),) * groups,
            logprobs=False,
        )
