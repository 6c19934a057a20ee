"""Which backends of the kernels a device runs, and why it does not run the others."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from jax.sharding import Mesh
from jaxinfer_kernels import unavailable

from jaxinfer.errors import ParameterError
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.platform import platform_of

CANDIDATES = {"cpu": ("xla",), "gpu": ("xla", "mosaic_gpu"), "tpu": ("xla", "mosaic_tpu")}
"""What may be chosen on each platform."""
BACKENDS = ("xla", "mosaic_tpu", "mosaic_gpu")
_HOPPER = "9.0"


def interpreted(backend: str, mesh: Mesh) -> bool:
    """Whether the devices of `mesh` run it in an interpreter: a CPU a TPU's kernel, where it is asked for."""
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
    """Where programs of a TPU's kernel are traced for a CPU; elsewhere it does nothing."""
    attention = (backend.name for backend in model.backends)
    names = (*attention, model.experts_backend, *dict(model.product_backends).values())
    wanted = any(interpreted(name, model.mesh) for name in names)
    return _interpreted() if wanted else nullcontext()


def _of_device(backend: str, platform: str, mesh: Mesh) -> str | None:
    if backend not in CANDIDATES[platform] and not interpreted(backend, mesh):
        slow = ", and mosaic_tpu in an interpreter, for tests" if interpreted("mosaic_tpu", mesh) else ""
        return f"{backend} does not run on {platform}: {' or '.join(CANDIDATES[platform])} does{slow}"
    device: Any = mesh.devices.flat[0]
    if backend == "mosaic_gpu" and (found := str(getattr(device, "compute_capability", "none"))) != _HOPPER:
        return f"mosaic_gpu needs a Hopper GPU, compute capability {_HOPPER}; {device.device_kind} has {found}"
    return None
