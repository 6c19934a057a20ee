"""An engine's process whose tokens can be foretold: `python -m benchmarks.event_loop_parts.engine ADDRESS`."""

import asyncio
import sys

from jaxinfer.build import DEMO_FOLDER
from jaxinfer.config import SchedulerConfig
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.engine.types import ModelInfo
from jaxinfer.processes.engine import serve_engine
from jaxinfer.signals import end_process
from jaxinfer.text import TextProcessor

ROWS, CONTEXT, BLOCK, STEP_SECONDS = 8, 8192, 16, 0.02


def main() -> None:
    vocab_size = TextProcessor.from_folder(DEMO_FOLDER).tokenizer.vocab_size
    blocks = 1 + ROWS * CONTEXT // BLOCK
    shapes = EngineShapes(ROWS, CONTEXT, ROWS, CONTEXT, BLOCK, (KVGroup(None, blocks),), vocab_size)
    info = ModelInfo("demo", CONTEXT, vocab_size, ROWS, BLOCK, blocks)
    runner = SimulatedRunner(shapes, step_seconds=STEP_SECONDS)
    core = EngineCore(runner, info, scheduler=SchedulerConfig(max_num_seqs=ROWS, max_waiting=1000))
    end_process(asyncio.run(serve_engine(core, sys.argv[1], on_ready=lambda found: print(found, flush=True))))


if __name__ == "__main__":
    main()
