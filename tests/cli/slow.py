"""The command line where something takes a minute: `python slow.py build|steps|step serve FOLDER …`."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jaxinfer.build
from jaxinfer.build import BuildProgress, BuiltEngine
from jaxinfer.cli import main
from jaxinfer.config import EngineConfig
from jaxinfer.engine.simulated import SimulatedRunner
from tests.llm import simulated


def build_slowly(config: EngineConfig, progress: BuildProgress | None = None) -> BuiltEngine:
    """Waits for a thread that nothing interrupts, as one of XLA's."""
    assert progress is not None
    with ThreadPoolExecutor() as pool:
        working = pool.submit(time.sleep, 60)
        progress.loaded(1, 2)
        working.result()
    return simulated.build_engine(config, progress)


if __name__ == "__main__":
    simulated.install()
    slow = sys.argv.pop(1)
    if slow == "build":
        jaxinfer.build.build_engine = build_slowly
    else:
        simulated.SimulatedRunner = partial(SimulatedRunner, step_seconds={"steps": 1.0, "step": 60.0}[slow])
    sys.exit(main())
