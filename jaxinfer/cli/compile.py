"""`jaxinfer compile`: writes the programs of an engine, for servers that start from them elsewhere."""

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
        raise ParameterError("compile_cache_dir", "is missing; give the folder to write, as --compile-cache-dir DIR")
    if key is None:
        raise ParameterError("compile_cache_key", "is missing; give a file, which is made if it is not there")
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
    print(f"{made} programs are in {folder}. On devices like these, with the same flags:")
    print(f"  jaxinfer serve {config.model} --compile-cache-dir {folder} --compile-cache-key {key}")
    return 0
