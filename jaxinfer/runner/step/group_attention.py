"""Paged attention of the layers of one KV group: a backend, its block sizes, and how a mesh shares the work."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec
from jaxinfer_kernels import (
    BlockSizes,
    GpuBlocks,
    KVLayout,
    TpuBlocks,
    default_block_sizes,
    gpu_blocks,
    ragged_paged_attention,
    tpu_blocks,
)

from jaxinfer.layers.attention import Heads
from jaxinfer.model_config.layer_kind import Scoring
from jaxinfer.models.loaded import GroupBackend, LoadedModel
from jaxinfer.parallel.per_device import per_device
from jaxinfer.runner.platform.values import platform_of

GroupAttention = Callable[..., tuple[jax.Array, jax.Array]]
"""attention(heads, pages, layer, rows, *, short_rows) gives (out [T, Hq, D], pages).

layer: one of the group's. Short rows hold few tokens each; the int R says that all R rows are short."""


def group_attention(model: LoadedModel, group: int, scoring: Scoring, short_len: int = 1) -> GroupAttention:
    """Attention of layers of a KV group. short_len: tokens of a short row, at most. On a mesh each device attends with
    its own heads: a kernel is one device's program, which XLA cannot split."""
    options: dict[str, Any] = {
        "short_len": short_len,
        "scale": scoring.scale,
        "soft_cap": scoring.soft_cap,
        "window": model.config.kv_groups[group].window,
        "backend": model.backends[group].name,
        "layout": model.backends[group].layout,
        "kv_dtype": model.kv_type(group),
        "block_sizes": block_sizes(model, group),
    }

    def attend(heads: Heads, *rest: Any, short_rows: int | jax.Array) -> tuple[jax.Array, jax.Array]:
        scales = None if heads.kv_scale is None else (heads.kv_scale[0], heads.kv_scale[1])
        changing = {"sinks": heads.sinks, "kv_scale": scales, "short_rows": short_rows}
        return ragged_paged_attention(heads.q, heads.k, heads.v, *rest, **changing, **options)

    return attend if model.mesh.size == 1 else _over_heads(model, group, attend)


def with_backend(model: LoadedModel, group: int, name: str, layout: KVLayout | None = None) -> LoadedModel:
    """The model with another backend for a KV group, over another layout where one is given."""
    backend = GroupBackend(name, layout or model.backends[group].layout)
    return replace(model, backends=(*model.backends[:group], backend, *model.backends[group + 1 :]))


def block_sizes(model: LoadedModel, group: int) -> BlockSizes | TpuBlocks | GpuBlocks | None:
    """The group's backend's block sizes for the shapes that each of the model's devices has; they need not be here.
    None for native kernels, which choose theirs themselves."""
    kind, device = model.config.kv_groups[group].kv, model.mesh.devices.flat[0]
    backend, layout = model.backends[group]
    if backend == "native":
        return None
    if backend == "xla":
        return default_block_sizes(platform_of(model.mesh))
    if backend == "mosaic_gpu":
        return gpu_blocks(kind.key_dim, kind.value_dim, narrow=model.kv_dtype(group).itemsize == 1)
    shape = model.kv_sharding(group, 1, 1).shard_shape(model.kv_shape(group, 1, 1))
    heads = shape[layout.axes.index("kv_heads")]
    return tpu_blocks(heads, group_size(model, group), token_bytes(model, group) // kind.heads, device.device_kind)


def group_size(model: LoadedModel, group: int) -> int:
    """Query heads a KV head of a group's layers, the most that one of them has."""
    layers = model.config.kv_groups[group].layers
    return max(model.config.layers[layer].mixer.group_size for layer in layers)


def token_bytes(model: LoadedModel, group: int) -> int:
    """Bytes that one token takes in one layer's blocks of a group, all heads."""
    return int(np.prod(model.kv_shape(group, 1, 1)[1:])) * model.kv_dtype(group).itemsize


def _over_heads(model: LoadedModel, group: int, attend: GroupAttention) -> GroupAttention:
    over = model.rules.split("kv_heads")
    heads, one = PartitionSpec(None, over), PartitionSpec()
    split = Heads._make((heads, heads, heads, PartitionSpec(over), one))

    def attention(
        given: Heads, pages: jax.Array, *rest: Any, short_rows: int | jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        spec = model.rules.sharding(model.mesh, model.backends[group].layout.axes, pages.shape).spec
        all_short = isinstance(short_rows, int)

        def local(*here: Any) -> tuple[jax.Array, jax.Array]:
            return attend(*here[:-1], short_rows=short_rows if all_short else here[-1])

        split_over = per_device(local, model.mesh, (split, spec, one, one, one), (heads, spec))
        return split_over(given, pages, *rest, short_rows)

    return attention
