"""Layers of each stage, split by the bytes of the model's weights."""

import jax.numpy as jnp

from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.models.plan import plan_model
from jaxinfer.parallel.layer_split import Costs, Spans, asked_layers, split_layers
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.runner.fit.device_weights import device_bytes

_TABLES = ("embed", "positions")


def layer_spans(asked: str | None, config: DecoderConfig, dtype: jnp.dtype, platform: str, mesh: MeshConfig) -> Spans:
    """The layers of each of a mesh's stages, as `--pipeline-layers` asks or by cost. config: over the mesh's parts.
    Raises ParameterError for what cannot be."""
    if asked is not None:
        return asked_layers(asked, config.num_layers, mesh.stages)
    if mesh.stages == 1:
        return ((0, config.num_layers),)
    return split_layers(layer_costs(config, dtype, platform, mesh.of_stage), mesh.stages)


def layer_costs(config: DecoderConfig, dtype: jnp.dtype, platform: str, mesh: MeshConfig) -> Costs:
    """Return the bytes of layers, tables and head on one device. A decode step reads all of a layer's weights, and the
    head; of the embedding it reads a row a token, which does not count."""
    plan = plan_model(config, dtype)
    layers, tables, head = [0] * config.num_layers, 0, 0
    for one in plan.weights:
        taken = device_bytes(one, platform, mesh)
        for layer in one.layers or ():
            layers[layer] += taken // len(one.layers or ())
        tables += taken if one.path[-1] in _TABLES else 0
        head += taken if one.path == ("embed",) and config.tie_word_embeddings else 0
    head += sum(device_bytes(one, platform, mesh) for one in plan.head)
    return Costs(layers, layers, tables, head, head)
