"""Report packages, devices and the driver. Runs first, to report what is missing before measurements begin."""

import subprocess
from importlib import import_module
from typing import Any

from benchmarks.device.context import Context

NEEDED = (
    "numpy", "jax", "flax", "orbax.checkpoint", "safetensors", "tokenizers", "aiohttp", "msgspec", "tyro", "jinja2",
    "yaml", "rich", "prometheus_client", "huggingface_hub",
)  # fmt: skip
OPTIONAL = ("torch", "transformers", "vllm", "pytest", "hypothesis")


def measure(context: Context) -> None:
    """missing: what jaxinfer needs and cannot import, with the error. peers: which of what some parts need it has."""
    missing = {name: error for name in NEEDED if (error := _import_error(name))}
    context.save(missing=missing, peers={name: _installed(name) for name in OPTIONAL})
    if "jax" in missing:
        return
    import jax

    from jaxinfer.runner.platform.values import device_memory

    runtime = jax.devices()[0].client.platform_version  # of a TPU: the build of libtpu
    context.save(backend=jax.default_backend(), memory=device_memory(), runtime=runtime, driver=_driver())


def _import_error(name: str) -> str | None:
    try:
        import_module(name)
    except Exception as error:  # whatever an import does wrong is to be told
        return f"{type(error).__name__}: {error}"
    return None


def _installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def _driver() -> Any:
    """Return the name, driver, clocks and limits of NVIDIA GPUs; None if there is none."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit", "--format=csv"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().splitlines() if done.returncode == 0 else None
