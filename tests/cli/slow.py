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
from tests.cli.serve_simulated import use_simulated
from tests.llm import simulated


def build_slowly(config: EngineConfig, progress: BuildProgress | None = None) -> BuiltEngine:
    """Waits for a thread that nothing interrupts, as one of XLA's."""
    assert progress is not None
    with ThreadPoolExecutor() as pool:
        working = pool.submit(time.sleep, 60)
        progress.loaded(1, 2)
        working.result()
    return simulated.build_engine(config, progress)


def slow_down(what: str) -> None:
    """Makes building, each step by a second, or each by a minute slow, in this process; nothing by default."""
    if what == "build":
        jaxinfer.build.build_engine = build_slowly
    elif what:
        simulated.SimulatedRunner = partial(SimulatedRunner, step_seconds={"steps": 1.0, "step": 60.0}[what])


if __name__ == "__main__":
    speed = sys.argv.pop(1)
    use_simulated(speed)
    slow_down(speed)
    sys.exit(main())
