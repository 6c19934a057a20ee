"""Puts an engine together from a config tree, in stages: declare, size, load, choose kernels, fit memory, compile.

This is the only place where the engine meets a device; jax is imported when it is called. Each stage is a file of this
package that makes one frozen record of the one before; order.py has their order. The first two need no device.
"""

import logging
import random
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jaxinfer.build.asked import StartRequest
from jaxinfer.build.described import sizes_line
from jaxinfer.build.folders import DEMO_FOLDER, load_text, model_folder
from jaxinfer.build.progress import BuildProgress, BuildSeconds, Laps
from jaxinfer.config import EngineConfig
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.recording import RecordingRunner
from jaxinfer.engine.device.runner import Runner
from jaxinfer.errors import ParameterError
from jaxinfer.hosts.team import ALONE, Team
from jaxinfer.parallel.asked_mesh import served_mesh
from jaxinfer.runner.platform import xla_options

if TYPE_CHECKING:
    from jaxinfer.build.compiled import CompiledEngine

__all__ = [
    "DEMO_FOLDER",
    "BuildProgress",
    "BuildSeconds",
    "BuiltEngine",
    "build_engine",
    "build_follower",
    "compile_engine",
    "load_text",
    "model_folder",
    "seed_of",
    "sizes_line",
]

log = logging.getLogger(__name__)


class BuiltEngine(NamedTuple):
    """An engine that is ready to serve. folder holds the model's tokenizer and generation files."""

    core: EngineCore
    folder: Path
    seconds: BuildSeconds = BuildSeconds()


def build_engine(config: EngineConfig, progress: BuildProgress | None = None, team: Team | None = None) -> BuiltEngine:
    """Loads the model and compiles its programs. Raises ModelError or ParameterError for what cannot be served.

    team: of the host that schedules; None: settings that ask for several hosts are refused.
    """
    if team is None and config.hosts.coordinator is not None:
        raise ParameterError("coordinator", "several hosts are joined by `jaxinfer serve`; leave it out")
    team, laps = team or ALONE, Laps()
    made = _start(config, progress, team, laps, leads=True)
    if made.constraints is not None:
        made.constraints.wait_ready()
    core = EngineCore(
        _recorded(team.leading(made.runner), config.runner.fault_folder),
        made.info,
        scheduler=config.scheduler,
        cache=config.cache,
        eos_ids=made.eos_token_ids,
        seed=seed_of(config),
        costs=made.costs,
        constraints=made.constraints,
        hosts=team.readings,
    )
    if made.when == "first":
        made.runner.sizes.start()
    seconds = laps.seconds(*made.runner.making_seconds)
    log.info("engine built in %s", seconds)
    return BuiltEngine(core, made.folder, seconds)


def build_follower(config: EngineConfig, team: Team, progress: BuildProgress | None = None) -> Runner:
    """The runner of a host that does not schedule. Raises what `build_engine` raises."""
    return _start(config, progress, team, Laps(), leads=False).runner


def compile_engine(config: EngineConfig, progress: BuildProgress | None = None) -> "CompiledEngine":
    """Loads the model and compiles its programs, and serves nothing. Raises what `build_engine` raises."""
    if config.hosts.coordinator is not None:
        raise ParameterError("coordinator", "programs of several hosts are made where they serve; leave it out")
    return _start(config, progress, ALONE, Laps(), leads=False)


def seed_of(config: EngineConfig) -> int:
    """Return the seed from which those of requests without one are drawn: the setting, or another number at every
    start."""
    return random.SystemRandom().getrandbits(63) if config.load.seed is None else config.load.seed


def _start(
    config: EngineConfig, progress: BuildProgress | None, team: Team, laps: Laps, *, leads: bool
) -> "CompiledEngine":
    asked = StartRequest(config, served_mesh(config.parallel, team.num_hosts), team, progress, leads)
    xla_options.prepare(config)
    from jaxinfer.build.order import start  # which imports jax

    laps.end("imports")
    return start(asked, laps)


def _recorded(runner: Runner, folder: str | None) -> Runner:
    return runner if folder is None else RecordingRunner(runner, Path(folder))
