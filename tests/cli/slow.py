"""The command line where something takes a minute, or fails: `python slow.py build|steps|… serve FOLDER …`."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import jaxinfer.build
from jaxinfer.build import BuildProgress, BuiltEngine
from jaxinfer.cli import main
from jaxinfer.config import EngineConfig
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.errors import ModelError
from jaxinfer.hosts.team import Team
from tests.cli.serve_simulated import use_simulated
from tests.llm import simulated

_STEP_SECONDS = {"brisk steps": 0.2, "steps": 1.0, "step": 60.0}


def build_slowly(config: EngineConfig, progress: BuildProgress | None = None, team: Team | None = None) -> BuiltEngine:
    """Waits for a thread that nothing interrupts, as one of XLA's."""
    assert progress is not None
    with ThreadPoolExecutor() as pool:
        working = pool.submit(time.sleep, 60)
        progress.loaded(1, 2)
        working.result()
    return simulated.build_engine(config, progress)


def build_where_the_folder_is(
    config: EngineConfig, progress: BuildProgress | None = None, team: Team | None = None
) -> BuiltEngine:
    """Fails as a real build does where the model's folder is not there."""
    if not Path(config.model).is_dir():
        raise ModelError(f"{config.model} is no folder")
    return simulated.build_engine(config, progress)


def build_that_fails(
    config: EngineConfig, progress: BuildProgress | None = None, team: Team | None = None
) -> BuiltEngine:
    """Fails as nothing that was thought of."""
    raise OSError("the disk is on fire")


def slow_down(what: str) -> None:
    """Makes steps take what _STEP_SECONDS says, in this process; or building slow, or need the folder, or fail."""
    if what == "build":
        jaxinfer.build.build_engine = build_slowly
    elif what == "vanishing":
        jaxinfer.build.build_engine = build_where_the_folder_is
    elif what == "failing":
        jaxinfer.build.build_engine = build_that_fails
    elif what:
        simulated.SimulatedRunner = partial(SimulatedRunner, step_seconds=_STEP_SECONDS[what])


if __name__ == "__main__":
    speed = sys.argv.pop(1)
    use_simulated(speed)
    slow_down(speed)
    sys.exit(main())
