"""Bytes and parameters of a model on one device, from its declaration alone: neither needs to be here."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxinfer_kernels import KVLayout
from jaxinfer_kernels.cpu.packed import values_shape
from jaxinfer_kernels.layouts import platform_layout

from jaxinfer.model_config.decoder_config import DecoderConfig, LayerGroup
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.models.plan import ModelPlan
from jaxinfer.models.weight import Weight
from jaxinfer.parallel.auto_mesh import Taken
from jaxinfer.parallel.mesh import shard_shape
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.runner.fit.device_weights import device_bytes, placed_plan


class GroupBytes(NamedTuple):
    """A KV group of `layers` layers. window: tokens that it keeps; None: all. token_bytes: that a device keeps of a
    token in `dtype`, of which `padding_bytes` are padding."""

    layers: int
    window: int | None
    dtype: str
    token_bytes: int
    padding_bytes: int


def taken_of_device(config: DecoderConfig, dtype: jnp.dtype, platform: str, mesh: MeshConfig) -> Taken:
    """Return the bytes on one device of a mesh, which need not be present: of the weights, and of keys and values of
    one sequence as long as the context. Raises ParameterError if the model cannot be split so."""
    config = config.over(*mesh.parts)
    context, layout = config.max_position_embeddings, platform_layout(platform)
    groups = [group_bytes(group, layout, dtype, mesh) for group in config.kv_groups]
    tokens = [context if group.window is None else min(context, group.window) for group in groups]
    kv = sum(count * group.token_bytes for count, group in zip(tokens, groups, strict=True))
    return Taken(weight_bytes(config, dtype, platform, mesh), kv)


def kv_token_bytes(config: DecoderConfig, dtype: jnp.dtype, platform: str, mesh: MeshConfig) -> tuple[int, ...]:
    """Bytes that a device keeps of a token, an entry a KV group; of stages one in each together. config: over the
    mesh's parts."""
    layout = platform_layout(platform)
    return tuple(group_bytes(group, layout, dtype, mesh).token_bytes for group in config.kv_groups)


def weight_bytes(config: DecoderConfig, dtype: jnp.dtype, platform: str, mesh: MeshConfig) -> int:
    """Return the bytes of all weights on one device. config: of a model or a stage, over the mesh's parts."""
    plan = placed_plan(config, dtype, platform, mesh)
    return sum(device_bytes(one, platform, mesh) for one in (*plan.weights, *plan.head))


def count_parameters(model: LoadedModel) -> int:
    """Numbers among the weights and the head, also packed ones; a tied head counts once."""
    arrays = {id(array): array for array in (*model.weights, *model.head)}.values()
    return sum(int(np.prod(values_shape(array), dtype=np.int64)) for array in arrays)


def active_parameters(plan: ModelPlan) -> int:
    """Parameters that one token's step uses: of every layer's experts those that are chosen, of an embedding that is
    not the head too one row."""
    total = 0
    for leaf in (*plan.weights, *plan.head):
        size = parameters(leaf)
        if leaf.path == ("embed",) and plan.head:
            size = plan.config.hidden_size
        if "expert" in leaf.axes:
            assert leaf.layers is not None
            experts = plan.config.layers[leaf.layers[0]].experts
            assert experts is not None
            size = size * experts.chosen // experts.count
        total += size
    return total


def parameters(leaf: Weight) -> int:
    """Parameters that it has; scales of keys and values are none."""
    if str(leaf.path[-1]) == "kv_scale":
        return 0
    return int(np.prod(leaf.shape, dtype=np.int64))


def group_bytes(group: LayerGroup, layout: KVLayout, dtype: jnp.dtype, mesh: MeshConfig) -> GroupBytes:
    """Describe what one device keeps of a KV group."""
    kv, layers = group
    shape = layout.shape(
        layers=len(layers), pages=1, page_size=1, kv_heads=kv.heads, key_dim=kv.key_dim, value_dim=kv.value_dim
    )
    part = shard_shape(mesh, layout.axes, shape)
    heads = part[layout.axes.index("kv_heads")]
    kept = dtype if kv.codes is None else jnp.dtype(kv.codes)
    token = int(np.prod(part)) * kept.itemsize
    used = len(layers) * heads * (kv.key_dim + kv.value_dim) * kept.itemsize
    return GroupBytes(len(layers), kv.window, kept.name, token, token - used)
