"""Sizes of a model's weights on one device of a mesh; neither model nor mesh needs to be present."""

import jax.numpy as jnp

from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.models.plan import ModelPlan, plan_model
from jaxinfer.models.weight import Weight
from jaxinfer.parallel.mesh import shard_shape
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.quantization.array import four_bits, held_bytes
from jaxinfer.runner.tuning.layer_layout import layer_layout


def placed_plan(config: DecoderConfig, dtype: jnp.dtype, platform: str, mesh: MeshConfig) -> ModelPlan:
    """The model's structure in the layout that an engine there would choose. config: over the mesh's parts."""
    return plan_model(config, dtype, layer_layout("auto", platform, mesh))


def device_bytes(weight: Weight, platform: str, mesh: MeshConfig) -> int:
    """Return the bytes that one device of a mesh holds of a weight."""
    columns, total = shard_shape(mesh, weight.axes, weight.shape)[-1], 0
    for leaf in weight.leaves(four_bits(platform, mesh.size)):
        part = shard_shape(mesh, leaf.axes, leaf.shape)
        total += held_bytes(part, leaf.dtype, platform, weight.order(leaf, columns, platform))
    return total
