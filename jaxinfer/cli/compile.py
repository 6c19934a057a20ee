"""`jaxinfer compile`: writes the programs of an engine, for servers that start from them elsewhere."""

from collections.abc import Sequence
from pathlib import Path

from jaxinfer.cli.settings import parse_settings
from jaxinfer.config import EngineConfig, RunnerConfig
from jaxinfer.console.progress import build_progress
from jaxinfer.errors import JaxinferError, ParameterError

_EVERY_PROGRAM = EngineConfig(runner=RunnerConfig(compile="all"))


def run(arguments: Sequence[str]) -> int:
    """Starts an engine, whose programs are kept as they are made, and ends it."""
    config, _ = parse_settings("compile", {}, arguments, engine=_EVERY_PROGRAM)
    folder, key = config.runner.compile_cache_dir, config.runner.compile_cache_key
    if folder in (None, "off"):
        raise ParameterError("compile_cache_dir", "is missing; give the folder to write, as --compile-cache-dir DIR")
    if key is None:
        raise ParameterError("compile_cache_key", "is missing; give a file, which is made if it is not there")
    from jaxinfer.build import compile_engine
    from jaxinfer.runner.platform.compile_cache import make_key

    make_key(Path(key))
    with build_progress() as progress:
        runner = compile_engine(config, progress).runner
    every = [stage.programs for stage in runner.stages]
    made, kept = (sum(map(len, names)) for names in zip(*((one.names, one.kept()) for one in every), strict=True))
    runner.close()
    if kept < made:
        raise JaxinferError(f"{made - kept} of {made} programs could not be written to {folder}")
    print(f"{made} programs are in {folder}. On devices like these, with the same flags:")
    print(f"  jaxinfer serve {config.model} --compile-cache-dir {folder} --compile-cache-key {key}")
    return 0
