"""A name for all that compiled programs follow from."""

import hashlib
import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax
import jaxinfer_kernels

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.platform.compile_cache import processor
from jaxinfer.runner.platform.xla_options import ENVIRONMENT, Options, described

_NO_MATTER = (
    "jax_compilation_cache", "jax_enable_compilation_cache", "jax_persistent_cache", "jax_log", "jax_dump",
    "jax_traceback", "jax_cross_host",
)  # fmt: skip
"""Settings of JAX whose names begin so leave a program what it is."""
FOLLOWED = (
    "runner", "layers", "models", "model_config", "quantization", "parallel", "checkpoint", "config_json",
    "engine/step", "engine/__init__.py",
    "config.py", "engine/device/__init__.py", "engine/device/runner.py", "parameter.py", "sampling.py", "constraint.py",
    "structural_tag.py", "speculation.py", "errors.py", "folder_files.py", "version.py",
)  # fmt: skip
"""Parts of this package that determine programs: all that `programs.table` imports is among them."""
_COMPILERS = (
    "jax", "jaxlib", "flax", "libtpu",
    "jax-cuda12-plugin", "jax-cuda12-pjrt", "jax-cuda13-plugin", "jax-cuda13-pjrt",
)  # fmt: skip


def program_key(model: LoadedModel, shapes: EngineShapes, options: Options) -> str:
    """20 hexadecimal digits of the code that makes programs, what they are made for, and who compiles them."""
    devices = [(device.id, device.process_index, device.device_kind) for device in model.mesh.devices.flat]
    client = model.mesh.devices.flat[0].client
    versions = compiler_versions()
    settings = sorted((name, str(value)) for name, value in jax.config.values.items() if _matters(name))
    environment = [os.environ.get(name, "") for name in ENVIRONMENT]
    made_for = [*map(_model_key, model.drafting), shapes]
    made_by = [described(options), devices, client.platform_version, processor(), versions, settings, environment]
    return _digest(source_digest(), *map(repr, (*made_for, *made_by)))


def _model_key(model: LoadedModel) -> str:
    arrays = [(array.shape, str(array.dtype), str(array.sharding)) for array in (*model.weights, *model.head)]
    parts = (
        model.structure,
        model.dtype,
        model.backends,
        model.experts_backend,
        model.dispatch_form,
        model.product_backends,
        model.plain_backend,
        model.layout,
        model.mesh.shape,
        model.rules,
        arrays,
    )
    return repr(parts)


def _matters(setting: str) -> bool:
    return not setting.startswith(_NO_MATTER)


def compiler_versions() -> list[str]:
    """Return the versions of JAX and of what it compiles with; empty for packages that are not installed."""
    return [_version(name) for name in _COMPILERS]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


@cache
def source_digest() -> str:
    """Return the digest of every source line that determines a program."""
    own, kernels = Path(__file__).parents[2], Path(jaxinfer_kernels.__file__).parent
    places = [(own, own / name) for name in FOLLOWED] + [(kernels, kernels)]
    files = [(file.relative_to(root), file.read_bytes()) for root, place in places for file in _sources(place)]
    return _digest(*map(repr, files))


def _sources(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def _digest(*parts: str) -> str:
    """Return the digest of all parts, and of where each ends, in 20 hexadecimal digits."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]
