"""What is done before JAX is imported: `python -m tests.runner.before_jax prepare VARIABLE...`, or `build`."""

import json
import os
import sys

from jaxinfer.build import build_engine
from jaxinfer.config import CacheConfig, EngineConfig
from jaxinfer.runner.platform import xla_options


def prepare(*names: str) -> None:
    """Print whether jax is imported, and the variables of the environment, once an engine is prepared."""
    xla_options.prepare(EngineConfig(cache=CacheConfig(gpu_memory_utilization=0.5)))
    print(json.dumps(["jax" in sys.modules, *map(os.environ.get, names)]))


def build() -> None:
    """End with status 1 if jax is imported when an engine is prepared."""
    xla_options.prepare = lambda config: sys.exit("jax" in sys.modules)
    build_engine(EngineConfig())


if __name__ == "__main__":
    {"prepare": prepare, "build": build}[sys.argv[1]](*sys.argv[2:])
