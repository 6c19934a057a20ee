"""A simulated device whose steps take a set time, the engine over it, and the loop that could drive it at best."""

import time
from collections.abc import Callable

import numpy as np

from jaxinfer.config import SchedulerConfig
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.calls import Start
from jaxinfer.engine.device.runner import Runner
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.engine.step.packed import PackedStep
from jaxinfer.engine.step.plan import StepResult
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.engine.types import GenerateRequest, ModelInfo
from jaxinfer.sampling import SamplingParams

BLOCK, CONTEXT, PROMPT = 16, 4096, 32


class ChattyRunner(SimulatedRunner):
    """Draws ids of a vocabulary's ordinary tokens, of no meaning, without reading a block."""

    def __init__(self, shapes: EngineShapes, seconds: float):
        super().__init__(shapes, step_seconds=seconds, draws=False)
        self._ids = np.random.default_rng(0).integers(20, shapes.vocab_size, 1 << 16).astype(np.int32)
        self._collected = 0
        self.last: PackedStep | None = None

    def finish(self, step: PackedStep, begun: float, counts: np.ndarray | None):
        self.last = step
        return super().finish(step, begun, counts)

    def collect(self, index: int) -> StepResult:
        result = super().collect(index)
        count, self._collected = len(result.tokens), self._collected + 1
        first = self._collected * 7919 % (len(self._ids) - count)
        return result._replace(tokens=self._ids[first : first + count, None])


def make_runner(rows: int, seconds: float, vocab_size: int) -> ChattyRunner:
    """A device of `rows` slots whose steps take so long."""
    groups = (KVGroup(None, 1 + rows * CONTEXT // BLOCK),)
    return ChattyRunner(EngineShapes(rows, max(8192, rows), rows, CONTEXT, BLOCK, groups, vocab_size), seconds)


def make_core(
    rows: int,
    seconds: float,
    vocab_size: int,
    name: str = "simulated",
    *,
    overlap: bool = True,
    leading: Callable[[Runner], Runner] = lambda runner: runner,
) -> EngineCore:
    """An engine over such a device. leading: gives the runner that it calls in its place."""
    runner = make_runner(rows, seconds, vocab_size)
    info = ModelInfo(name, CONTEXT, vocab_size, rows, BLOCK, runner.shapes.groups[0].num_blocks)
    config = SchedulerConfig(max_num_seqs=rows, max_waiting=4 * rows, overlap=overlap)
    return EngineCore(leading(runner), info, scheduler=config)


def fill(core: EngineCore, rows: int) -> None:
    """Brings `rows` requests to where all decode."""
    params = SamplingParams(max_tokens=None, temperature=0.0, seed=0)
    for row in range(rows):
        prompt = [20 + (row * 31 + i) % 100 for i in range(PROMPT + row % BLOCK)]
        core.add_request(GenerateRequest(str(row), prompt, params))
    while core.num_waiting or any(sequence.num_outputs < 2 for sequence in core.scheduler.state.running):
        core.step()


def engine_rate(core: EngineCore, steps: int) -> float:
    """Tokens a second of an engine whose requests all decode."""
    start, tokens = time.perf_counter(), 0
    for _ in range(steps):
        tokens += sum(output.num_tokens for output in core.step())
    return tokens / (time.perf_counter() - start)


def bare_rate(core: EngineCore, steps: int, device: ChattyRunner | None = None) -> float:
    """Tokens a second of the engine's device, driven one step ahead with the engine's last step and nothing else.
    device: where the engine calls another runner."""
    runner = core.runner if device is None else device
    assert isinstance(runner, ChattyRunner)
    step = runner.last
    assert step is not None
    runner.submit(Start(step._replace(index=0)))
    tokens, start = 0, time.perf_counter()
    for index in range(steps):
        runner.submit(Start(step._replace(index=index + 1)))
        tokens += len(runner.collect(index).tokens)
    seconds = time.perf_counter() - start
    runner.collect(steps)
    return tokens / seconds
