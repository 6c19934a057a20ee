"""A model without values on devices that need not be here, multiplied and attended as an engine there would choose."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jaxinfer_kernels import unavailable
from jaxinfer_kernels.gpu.attention_blocks import check_gpu_shapes
from jaxinfer_kernels.layouts import platform_layout

from jaxinfer.layers.dispatch import DispatchForm
from jaxinfer.model_config.decoder_config import DecoderConfig, LayerGroup
from jaxinfer.models.loaded import GroupBackend, LoadedModel, abstract_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.runner.fit.device_weights import placed_plan
from jaxinfer.runner.tuning.products import with_products

BACKENDS = {"tpu": ("mosaic_tpu",), "gpu": ("mosaic_gpu", "xla")}
"""Kernel backends for a platform, the one that is expected to be fastest first."""
_GPU_TILE = 64
"""Rows and columns of weights are a multiple of that for Mosaic GPU's grouped matmul."""


def first_backend(platform: str) -> str:
    """The first that this version of JAX has."""
    return next(backend for backend in BACKENDS[platform] if not unavailable(backend))


def stand_in(
    decoder: DecoderConfig,
    dtype: jnp.dtype,
    mesh: MeshConfig,
    devices: Sequence[Any],
    platform: str,
    block_size: int,
    backend: str,
    form: DispatchForm = "reduce",
) -> LoadedModel:
    """decoder: over the mesh's parts. devices: those of the mesh. block_size: tokens of a KV block. backend: what
    computes wherever it can. form: how rows come to experts of other devices."""
    layout = platform_layout(platform)
    model = abstract_model(
        decoder,
        dtype=dtype,
        mesh=make_mesh(mesh, devices),
        rules=mesh.rules,
        layout=placed_plan(decoder, dtype, platform, mesh).layout,
    )
    backends = (attends(decoder, group, backend, block_size, dtype) for group in decoder.kv_groups)
    multiplies = experts_backend(decoder, mesh, backend)
    model = replace(
        model,
        backends=tuple(GroupBackend(name, layout) for name in backends),
        experts_backend=multiplies,
        dispatch_form=form,
    )
    return with_products(model, multiplies)


def attends(decoder: DecoderConfig, group: LayerGroup, backend: str, block_size: int, dtype: jnp.dtype) -> str:
    """Return the attention backend of a KV group: `backend`, or xla if that refuses the group's heads, as
    `choose_attention` passes over it."""
    if backend != "mosaic_gpu":
        return backend
    queries = max(decoder.layers[layer].mixer.group_size for layer in group.layers)
    try:
        kept = dtype if group.kv.codes is None else jnp.dtype(group.kv.codes)
        check_gpu_shapes(dtype, kept, queries, group.kv.key_dim, group.kv.value_dim, block_size)
    except ValueError:
        return "xla"
    return backend


def experts_backend(decoder: DecoderConfig, mesh: MeshConfig, backend: str) -> str:
    """Return the backend for experts: `backend`, or xla if that refuses a device's channels, as `choose_experts` passes
    over it."""
    experts = [layer.experts for layer in decoder.layers if layer.experts is not None]
    odd = any(kind.size // mesh.shards("expert_mlp") % _GPU_TILE for kind in experts)
    return "xla" if backend == "mosaic_gpu" and odd else backend
