"""Values that depend on the platform: types, sizes, memory, and the compile cache."""

import logging
import math
import os
from importlib.metadata import version

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxinfer.config import DType, RunnerConfig
from jaxinfer.errors import ParameterError
from jaxinfer.parallel.mesh import platform_kind
from jaxinfer.runner.platform.compile_cache import CompileCache, is_safe_by_itself, open_cache
from jaxinfer.runner.platform.xla_options import Options, compiler_options, described

log = logging.getLogger(__name__)

_POOL_MARGIN = 0.97
"""Share of a GPU's pool that is planned for; the rest is left to fragmentation. Not measured on a card yet."""

_DTYPES = {"bfloat16": jnp.bfloat16, "float16": jnp.float16, "float32": jnp.float32}


def platform_name() -> str:
    """`cpu`, `gpu` or `tpu`: what this process runs on."""
    return platform_kind(jax.default_backend())


def platform_of(mesh: Mesh) -> str:
    """`cpu`, `gpu` or `tpu`: what programs over `mesh` are compiled for, which need not be here."""
    return platform_kind(mesh.devices.flat[0].platform)


def resolve_dtype(name: DType, platform: str | None = None, held: str | None = None) -> jnp.dtype:
    """auto is that of a folder of leaves, `held`; else bfloat16 on GPU and TPU, and float32 on CPU, where bfloat16
    products of vectors are slow. platform: by default this process's."""
    if name == "auto" and held is not None:
        return jnp.dtype(held)
    if name == "auto":
        name = "float32" if (platform or platform_name()) == "cpu" else "bfloat16"
    return jnp.dtype(_DTYPES[name])


def default_block_size(platform: str | None = None) -> int:
    """Tokens a KV block where none was asked for. platform: by default this process's."""
    return {"cpu": 16, "gpu": 64, "tpu": 128}[platform or platform_name()]


def device_memory() -> int | None:
    """Bytes of one device; None where the platform does not tell (CPU).

    On a GPU what JAX reports is the pool that `xla_options.reserve_memory` made of a share of it.
    """
    limit = _bytes_limit()
    if limit is None or platform_name() != "gpu":
        return limit
    return int(limit / float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "1")))


def usable_memory(share: float, mesh: Mesh | None = None) -> int | None:
    """Bytes of one device that everything together may take; None where the platform does not say (CPU).

    mesh: of its devices the one with the least, of those of this process; where it has none of them, or by default, of
    all that it has.

    On a GPU the pool that `xla_options.reserve_memory` made is what JAX reports as its limit; elsewhere it is the whole
    device.
    """
    limit = _bytes_limit(mesh)
    return None if limit is None else int(limit * (_POOL_MARGIN if platform_name() == "gpu" else share))


def usable_of(total: int, share: float, platform: str) -> int:
    """Return the usable bytes of a device that need not be present and has `total` bytes."""
    return int(total * share * (_POOL_MARGIN if platform == "gpu" else 1))


def _bytes_limit(mesh: Mesh | None = None) -> int | None:
    own = () if mesh is None else (each for each in mesh.devices.flat if each.process_index == jax.process_index())
    devices = list(own) or jax.local_devices()
    limits = [(device.memory_stats() or {}).get("bytes_limit") for device in devices]
    return min((limit for limit in limits if limit is not None), default=None)


def program_options(config: RunnerConfig) -> Options:
    """Options of XLA for every program on this process's platform, tried out.

    Raises ParameterError for one that this XLA does not know, or that does not take the value.
    """
    options = compiler_options(platform_name(), config)
    log.info("programs are compiled with %s", described(options))
    if config.xla_flags:
        try:
            jax.jit(lambda: 0).lower().compile(compiler_options=dict(options))
        except jax.errors.JaxRuntimeError as error:
            raise ParameterError("xla_flags", f"XLA of jaxlib {version('jaxlib')} refuses them: {error}") from None
    return options


def use_compile_cache(folder: str | None, key_file: str | None = None) -> CompileCache | None:
    """Keeps compiled programs in `folder`, by default the user's cache; `off` keeps none. Returns this user's part.

    One that cannot be written to is read. JAX's own cache, which signs nothing, is used where nobody else can reach the
    folder. key_file, errors: as of `open_cache`; a default folder that cannot be made is done without.
    """
    cache = open_cache(folder, key_file)
    if cache is None:
        jax.config.update("jax_enable_compilation_cache", False)
        return None
    if not is_safe_by_itself(cache):
        log.info("JAX's compile cache is off: others can replace %s, or a folder above it", cache.folder)
        jax.config.update("jax_enable_compilation_cache", False)
        return cache
    jax.config.update("jax_compilation_cache_dir", str(cache.folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0 if cache.writable else math.inf)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return cache
