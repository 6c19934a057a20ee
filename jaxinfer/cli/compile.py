"""`jaxinfer compile`: writes the programs of an engine, for servers that start from them elsewhere."""

import shlex
from collections.abc import Sequence

from jaxinfer.cli.settings import parse_settings
from jaxinfer.config import EngineConfig, RunnerConfig
from jaxinfer.console.progress import build_progress
from jaxinfer.errors import JaxinferError, ParameterError


def run(arguments: Sequence[str]) -> int:
    """Starts an engine, whose programs are kept as they are made, and ends it."""
    config, _ = parse_settings("compile", {}, arguments, engine=EngineConfig(runner=RunnerConfig(compile="all")))
    if config.runner.compile != "all":
        raise ParameterError("compile", f"{config.runner.compile} leaves programs out; leave the flag out")
    folder, key = config.runner.compile_cache_dir, config.runner.compile_cache_key
    if folder in (None, "off"):
        raise JaxinferError("--compile-cache-dir DIR is missing: the folder to write")
    if key is None:
        raise JaxinferError(
            "--compile-cache-key FILE is missing: it signs the programs, and is made if it does not exist"
        )
    from jaxinfer.build import compile_engine
    from jaxinfer.runner.platform.compile_cache import read_key

    read_key(key, make=True)
    with build_progress() as progress:
        runner = compile_engine(config, progress).runner
    made = sum(len(stage.programs.names) for stage in runner.stages)
    kept = sum(len({*stage.programs.kept()} - stage.programs.unkept) for stage in runner.stages)
    runner.close()
    if kept < made:
        raise JaxinferError(f"{made - kept} of {made} programs could not be written to {folder}")
    print(f"{made} programs are in {folder}, signed with the key in {key}. To serve from them, on devices like these:")
    print(f"  jaxinfer serve {shlex.join(arguments)}")
    return 0
