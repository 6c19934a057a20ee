"""What a process must set before JAX has a device. Nothing here imports jax."""

import logging
import os

from jaxinfer.config import EngineConfig
from jaxinfer.runner.xla_options import ENVIRONMENT

log = logging.getLogger(__name__)

_MEMORY = "XLA_PYTHON_CLIENT_MEM_FRACTION"


def prepare(config: EngineConfig) -> None:
    """Sets this process's environment for an engine of `config`; what the user set there stays.

    To be called before jax is imported, and without effect once a device was used.
    """
    reserve_memory(config.cache.gpu_memory_utilization)
    said = {name: os.environ[name] for name in (*ENVIRONMENT, _MEMORY) if os.environ.get(name)}
    log.info("environment of JAX: %s", " ".join(f"{name}={value!r}" for name, value in said.items()))


def reserve_memory(share: float) -> None:
    """Lets JAX's pool on a GPU take `share` of the card; TPUs and CPUs have none. A share set by the user stays."""
    os.environ.setdefault(_MEMORY, f"{share:.4f}")
