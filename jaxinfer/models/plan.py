"""ModelPlan: a model's structure without values."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxinfer.layers.experts import EXPERT_SLOTS
from jaxinfer.layers.stack import Layout
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.models import weight
from jaxinfer.models.decoder import Decoder, Head, TiedHead
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

    @property
    def numbered(self) -> "ModelPlan":
        """Plan of a stage with layers numbered as in the whole decoder."""
        span = self.config.span
        if span is None or not span.first:
            return self
        return replace(self, weights=tuple(_numbered(one, span.first) for one in self.weights))


def plan_model(config: DecoderConfig, dtype: jnp.dtype, layout: Layout = "unrolled") -> ModelPlan:
    """The structure of a model of `config`; allocates nothing."""
    model = Decoder(config, dtype, layout)
    graph, state = nnx.split(model)
    weights = tuple(_placed(one, config) for one in weight.describe(state, model.repeats, model.vectors.layers))
    head = _head(config, dtype)
    parts = () if head is None else weight.describe(nnx.state(head), model.repeats, {})
    return ModelPlan(config, graph, jax.tree.structure(state), weights, parts, layout)


def _head(config: DecoderConfig, dtype: jnp.dtype) -> nnx.Module | None:
    """None where it is the embedding, and of a stage that is not the last."""
    if not config.ends:
        return None
    if not config.tie_word_embeddings:
        return Head(config, dtype)
    return None if config.embeds else TiedHead(config, dtype)


def _numbered(one: Weight, first: int) -> Weight:
    if one.layers is None:
        return one
    kind, number, *rest = one.path
    path = (kind, int(number) + first, *rest) if kind == "blocks" and not one.stacked else one.path
    return one._replace(path=path, layers=tuple(layer + first for layer in one.layers))


def _placed(one: Weight, config: DecoderConfig) -> Weight:
    """Record which expert is in each slot, in a weight of copied experts or in their table of slots."""
    of_slots = str(one.path[-1]).startswith(EXPERT_SLOTS)
    experts = config.layers[one.layers[0]].experts if one.layers else None
    if experts is None or not experts.redundant or not (of_slots or "expert" in one.axes):
        return one
    return one._replace(placement=first_placement(experts.count, experts.redundant))
