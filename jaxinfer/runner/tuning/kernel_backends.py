"""Kernel backends that a device runs, and the reasons why it does not run the others."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxinfer_kernels import unavailable

from jaxinfer.errors import ParameterError
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.platform.values import platform_of

RUNNING = {"cpu": ("xla", "native"), "gpu": ("xla", "mosaic_gpu"), "tpu": ("xla", "mosaic_tpu")}
"""Backends that each platform may run."""
BACKENDS = ("xla", "mosaic_tpu", "mosaic_gpu", "native")
_HOPPER = "9.0"
_NATIVE_TYPES = (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16))


def candidates(mesh: Mesh, dtype: jnp.dtype) -> tuple[str, ...]:
    """Return the backends to choose from for a model of this type: on a CPU the native kernels if they run, else
    xla."""
    platform = platform_of(mesh)
    if platform != "cpu":
        return RUNNING[platform]
    return ("native",) if obstacle("native", mesh) is None and dtype in _NATIVE_TYPES else ("xla",)


def interpreted(backend: str, mesh: Mesh) -> bool:
    """Return whether the devices of `mesh` run a backend in an interpreter: a CPU does so with a TPU's kernel, if
    asked."""
    return backend == "mosaic_tpu" and platform_of(mesh) == "cpu"


def obstacle(backend: str, mesh: Mesh) -> str | None:
    """Why the devices of `mesh`, in this environment, do not run the backend; None where they do."""
    told = [_of_device(backend, platform_of(mesh), mesh), unavailable(backend)]
    return "; ".join(filter(None, told)) or None


def check_asked(asked: str, mesh: Mesh) -> None:
    """Raises ParameterError for a backend that does not run on `mesh`. `auto` does."""
    if asked != "auto" and (reason := obstacle(asked, mesh)):
        raise ParameterError("attention_backend", reason)


@contextmanager
def _interpreted() -> Iterator[None]:
    from jax.experimental.pallas import tpu as pltpu

    with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams()):
        yield


def kernel_interpreter(model: LoadedModel) -> AbstractContextManager[None]:
    """Return a context in which programs of a TPU's kernel are traced for a CPU; elsewhere it does nothing."""
    attention = (backend.name for backend in model.backends)
    names = (*attention, model.experts_backend, *dict(model.product_backends).values())
    wanted = any(interpreted(name, model.mesh) for name in names)
    return _interpreted() if wanted else nullcontext()


def _of_device(backend: str, platform: str, mesh: Mesh) -> str | None:
    if backend not in RUNNING[platform] and not interpreted(backend, mesh):
        slow = ", and mosaic_tpu in an interpreter, for tests" if interpreted("mosaic_tpu", mesh) else ""
        return f"{backend} does not run on {platform}: {' or '.join(RUNNING[platform])} does{slow}"
    if backend == "native" and mesh.size > 1:
        return f"native runs on one device, and this mesh has {mesh.size}"
    device: Any = mesh.devices.flat[0]
    if backend == "mosaic_gpu" and (found := str(getattr(device, "compute_capability", "none"))) != _HOPPER:
        return f"mosaic_gpu needs a Hopper GPU, compute capability {_HOPPER}; {device.device_kind} has {found}"
    return None
