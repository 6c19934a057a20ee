"""An engine's sizes on devices of this process, with all that can be checked before weights are read."""

import logging
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxinfer.build.asked import StartRequest
from jaxinfer.build.declared import DeclaredModel
from jaxinfer.build.drafting import DraftSource, declare_drafts
from jaxinfer.build.folders import own_tokenizer
from jaxinfer.build.sized import Sized, size
from jaxinfer.config import AttentionBackend, EngineConfig, RunnerConfig
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.parallel.auto_mesh import choose_mesh
from jaxinfer.parallel.distributed import join_processes
from jaxinfer.parallel.mesh import add_cpu_devices, make_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.runner.fit.inspection import taken_of_device
from jaxinfer.runner.fit.kv_measure import MEASURED_TEXT
from jaxinfer.runner.fit.sizes import this_device
from jaxinfer.runner.platform.compile_cache import CompileCache
from jaxinfer.runner.platform.device import check_device, limit_device
from jaxinfer.runner.platform.values import (
    platform_name,
    program_options,
    resolve_dtype,
    usable_memory,
    use_compile_cache,
)
from jaxinfer.runner.platform.xla_options import Options
from jaxinfer.runner.tuning.kernel_backends import candidates, check_asked
from jaxinfer.text.tokenizer.tokenizer import Tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlacedModel:
    """A model that can be loaded. backend: of attention, as asked for. cache: None: no programs are kept. measured:
    tokens by which scales of keys and values are measured, if they may have to be."""

    declared: DeclaredModel
    sized: Sized
    mesh: Mesh
    backend: AttentionBackend
    cache: CompileCache | None
    options: Options
    drafts: DraftSource
    measured: list[int]

    @property
    def notes(self) -> Path | None:
        """Folder of what was measured at earlier starts."""
        return None if self.cache is None else self.cache.folder


def find_devices(asked: StartRequest) -> None:
    """Raises ParameterError if this process lacks the devices that are asked for: before a model is sought."""
    config, team = asked.config, asked.team
    limit_device(config.runner.device)
    if asked.mesh is not None:
        add_cpu_devices(asked.mesh.size // team.num_hosts)
    if team.place is not None:
        join_processes(*team.place)
    check_device(config.runner.device)
    if asked.mesh is not None:
        make_mesh(asked.mesh)


def place(asked: StartRequest, declared: DeclaredModel) -> PlacedModel:
    """Raises ParameterError and ModelError for what cannot be served."""
    config, decoder = asked.config, declared.held(asked.config)
    dtype = resolve_dtype(config.load.dtype, held=decoder.held_dtype)
    parallel = asked.mesh or _auto_mesh(config, decoder, dtype)
    mesh = make_mesh(parallel)
    decoder = decoder.over(*parallel.parts)
    backend = _backend(asked)
    cache, options = _cache(config.runner), program_options(config.runner)
    check_asked(backend, mesh)
    native = backend in ("auto", "native") and candidates(mesh, dtype) == ("native",)
    sized = size(config, decoder, parallel, this_device(native), dtype)
    drafts = declare_drafts(config, sized)
    return PlacedModel(declared, sized, mesh, backend, cache, options, drafts, _measured_tokens(config, declared))


def _cache(config: RunnerConfig) -> CompileCache | None:
    return use_compile_cache(config.compile_cache_dir, config.compile_cache_key)


def _backend(asked: StartRequest) -> AttentionBackend:
    """Return the attention backend to use. Over several hosts nothing is timed, since programs of all of them would
    have to run in one order: auto is xla there."""
    backend = asked.config.runner.attention_backend
    return "xla" if backend == "auto" and asked.team.num_hosts > 1 else backend


def _measured_tokens(config: EngineConfig, declared: DeclaredModel) -> list[int]:
    if config.cache.kv_cache_dtype != "int8":
        return []
    return Tokenizer(own_tokenizer(config) or declared.source).encode(MEASURED_TEXT)


def _auto_mesh(config: EngineConfig, decoder: DecoderConfig, dtype: jnp.dtype) -> MeshConfig:
    """The mesh of `--mesh auto` for the devices of this process, for weights in `dtype`."""
    platform, devices = platform_name(), len(jax.local_devices())
    memory = usable_memory(config.cache.gpu_memory_utilization)
    if memory is None and platform == "cpu":
        log.info("--mesh auto: one device, since a CPU's memory is not divided")
        return ONE_DEVICE
    if memory is None:
        message = "--mesh auto: one of %d devices, since %s does not tell how much memory they have; name a mesh"
        log.warning(message, devices, platform)
        return ONE_DEVICE
    mesh, reason = choose_mesh(devices, memory, lambda mesh: taken_of_device(decoder, dtype, platform, mesh))
    log.info("--mesh auto: %s", reason)
    return mesh
