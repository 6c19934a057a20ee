"""Costs of a model's steps: sizes for the engine's totals of operations and bytes."""

import math
from collections import Counter

from jaxinfer.engine.stats.step_cost import ExpertCosts, StepCosts
from jaxinfer.model_config.decoder_config import DecoderConfig, LayerGroup
from jaxinfer.model_config.layer_kind import LayerKind
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.models.weight import Weight, held_on
from jaxinfer.quantization.array import FourBits


def step_costs(model: LoadedModel) -> StepCosts:
    """From the weights of a model, or of a stage of one. A multiplication and an addition are two operations.

    Of the embedding, where it is not the head too, a step reads a row a token: it is left out of the weights. So are
    experts, of which a token multiplies with those that it has chosen, and a step reads these.
    """
    config, held = model.config, held_on(model.mesh)
    plan = model.plan
    is_head = config.ends and not plan.head
    every = [*(one for one in plan.weights if is_head or one.path != ("embed",)), *plan.head]
    always = [one for one in every if "expert" not in one.axes]
    table = config.vocab_size * config.hidden_size if config.ends else 0
    return StepCosts(
        weight_bytes=sum(one.bytes(held) for one in always),
        token_flops=2 * (sum(math.prod(one.shape) for one in always) - table + _chosen(config, every)),
        scored_flops=2 * table,
        kv_bytes=tuple(_kv_values(g) * model.kv_dtype(i).itemsize for i, g in enumerate(config.kv_groups)),
        pair_flops=tuple(_pair_flops(config, group) for group in config.kv_groups),
        experts=_expert_costs(config, every, held),
    )


def _chosen(config: DecoderConfig, weights: list[Weight]) -> int:
    """Numbers of the experts that a token chooses."""
    total = 0
    for one in weights:
        if "expert" in one.axes:
            assert one.layers is not None
            experts = config.layers[one.layers[0]].experts
            assert experts is not None
            total += math.prod(one.shape) * experts.chosen // experts.slots
    return total


def _expert_costs(config: DecoderConfig, weights: list[Weight], held: FourBits) -> tuple[ExpertCosts, ...]:
    """An entry for all layers whose experts are alike."""
    sizes: Counter[LayerKind] = Counter()
    for one in weights:
        if "expert" in one.axes:
            assert one.layers is not None
            for layer in one.layers:
                sizes[config.layers[layer]] += one.bytes(held) // len(one.layers)
    alike: dict[tuple[int, int, int], int] = {}
    counts = Counter(config.layers)
    for kind, size in sizes.items():
        experts = kind.experts
        assert experts is not None
        each = (experts.count, experts.chosen, size // counts[kind] // experts.slots)
        alike[each] = alike.get(each, 0) + counts[kind]
    return tuple(ExpertCosts(count, chosen, layers * size) for (count, chosen, size), layers in alike.items())


def _kv_values(group: LayerGroup) -> int:
    """Numbers that a group's layers keep of a token."""
    return len(group.layers) * group.kv.heads * (group.kv.key_dim + group.kv.value_dim)


def _pair_flops(config: DecoderConfig, group: LayerGroup) -> int:
    """Operations of a query and a key in a group's layers: the score, and what it adds."""
    heads = sum(config.layers[layer].mixer.num_heads for layer in group.layers)
    return 2 * heads * (group.kv.key_dim + group.kv.value_dim)
