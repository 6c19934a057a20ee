"""Paged attention of the layers of one KV group: a backend, its block sizes, and how a mesh shares the work."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec
from jaxinfer_kernels import (
    BlockSizes,
    GpuBlocks,
    TpuBlocks,
    default_block_sizes,
    gpu_blocks,
    ragged_paged_attention,
    tpu_blocks,
)

from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.platform import platform_of

GroupAttention = Callable[..., tuple[jax.Array, jax.Array]]
"""attention(q [T, Hq, D], k, v [T, Hkv, D], pages, layer, rows, *, short_rows) gives (out [T, Hq, D], pages).

layer: one of the group's. Short rows hold one token each; the int R says that all R rows are short."""


def group_attention(model: LoadedModel, backend: str, window: int | None) -> GroupAttention:
    """Attention of layers with this window. On a mesh each device attends with its own heads: a kernel is one device's
    program, which XLA cannot split."""
    attend = partial(
        ragged_paged_attention,
        short_len=1,
        scale=model.config.attention_scale,
        window=window,
        backend=backend,
        layout=model.kv_layout,
        block_sizes=block_sizes(model, backend),
    )
    return attend if model.mesh.size == 1 else _over_heads(model, attend)


def block_sizes(model: LoadedModel, backend: str) -> BlockSizes | TpuBlocks | GpuBlocks:
    """A backend's block sizes for the shapes that each of the model's devices has; they need not be here."""
    config, device = model.config, model.mesh.devices.flat[0]
    if backend == "xla":
        return default_block_sizes(platform_of(model.mesh))
    if backend == "mosaic_gpu":
        return gpu_blocks(config.head_dim, config.head_dim)
    heads = model.kv_sharding(0, 1, 1).shard_shape(model.kv_shape(0, 1, 1))[model.kv_layout.axes.index("kv_heads")]
    return tpu_blocks(heads, config.group_size, token_bytes(model) // config.num_kv_heads, device.device_kind)


def token_bytes(model: LoadedModel) -> int:
    """Bytes that one token takes in one layer's blocks, all heads."""
    return int(np.prod(model.kv_shape(0, 1, 1)[1:])) * model.dtype.itemsize


def _over_heads(model: LoadedModel, attend: GroupAttention) -> GroupAttention:
    heads, one = PartitionSpec(None, model.rules.kv_heads), PartitionSpec()

    def attention(*arguments: Any, short_rows: int | jax.Array) -> tuple[jax.Array, jax.Array]:
        q, k, v, pages, layer, rows = arguments
        spec = model.rules.sharding(model.mesh, model.kv_layout.axes, pages.shape).spec
        all_short = isinstance(short_rows, int)

        def local(*here: Any) -> tuple[jax.Array, jax.Array]:
            return attend(*here[:-1], short_rows=short_rows if all_short else here[-1])

        return jax.shard_map(
            local,
            mesh=model.mesh,
            in_specs=(heads, heads, heads, spec, one, one, one),
            out_specs=(heads, spec),
            check_vma=False,
        )(q, k, v, pages, layer, rows, short_rows)

    return attention
