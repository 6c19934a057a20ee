"""ModelPlan: a model's structure without values."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxinfer.layers.stack import Layout
from jaxinfer.layers.vectors import EXPERT_SLOTS
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.models import weight
from jaxinfer.models.decoder import Decoder, Head
from jaxinfer.models.weight import Weight
from jaxinfer.parallel.expert_placement import first_placement


@dataclass(frozen=True)
class ModelPlan:
    """A model's structure without values: weights in the order of their leaves in LoadedModel.weights, then of its own
    head."""

    config: DecoderConfig
    graph: nnx.GraphDef
    tree: Any
    weights: tuple[Weight, ...]
    head: tuple[Weight, ...]
    layout: Layout = "unrolled"


def plan_model(config: DecoderConfig, dtype: jnp.dtype, layout: Layout = "unrolled") -> ModelPlan:
    """The structure of a model of `config`; allocates nothing."""
    model = Decoder(config, dtype, layout)
    graph, state = nnx.split(model)
    weights = tuple(_placed(one, config) for one in weight.describe(state, model.repeats, model.vectors.layers))
    head = () if config.tie_word_embeddings else weight.describe(nnx.state(Head(config, dtype)), model.repeats, {})
    return ModelPlan(config, graph, jax.tree.structure(state), weights, head, layout)


def _placed(one: Weight, config: DecoderConfig) -> Weight:
    """Where experts are copied, their weights say which is in each slot."""
    of_slots = str(one.path[-1]).startswith(EXPERT_SLOTS)
    experts = config.layers[one.layers[0]].mlp.experts if one.layers else None
    if experts is None or not experts.redundant or not (of_slots or "expert" in one.axes):
        return one
    return one._replace(placement=first_placement(experts.count, experts.redundant))
