"""ModelPlan: a model's structure without values."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxinfer.layers.stack import Layout
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.models import weight
from jaxinfer.models.decoder import Decoder, Head
from jaxinfer.models.weight import Weight


@dataclass(frozen=True)
class ModelPlan:
    """A model's structure without values: weights in the order of their leaves in LoadedModel.weights, then of its own
    head."""

    config: DecoderConfig
    graph: nnx.GraphDef
    tree: Any
    weights: tuple[Weight, ...]
    head: tuple[Weight, ...]


def plan_model(config: DecoderConfig, dtype: jnp.dtype, layout: Layout = "unrolled") -> ModelPlan:
    """The structure of a model of `config`; allocates nothing."""
    model = Decoder(config, dtype, layout)
    graph, state = nnx.split(model)
    weights = weight.describe(state, model.repeats, model.vectors.layers)
    head = () if config.tie_word_embeddings else weight.describe(nnx.state(Head(config, dtype)), model.repeats, {})
    return ModelPlan(config, graph, jax.tree.structure(state), weights, head)
