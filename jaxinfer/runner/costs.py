"""What the steps of a model cost: sizes for the engine's totals of operations and bytes."""

from collections import Counter

from jaxinfer.engine.stats.step_cost import ExpertCosts, StepCosts
from jaxinfer.model_config.decoder_config import DecoderConfig, LayerGroup
from jaxinfer.model_config.mlp_kind import MlpKind
from jaxinfer.models.loaded import LoadedModel


def step_costs(model: LoadedModel) -> StepCosts:
    """From the arrays of a model. A multiplication and an addition are two operations.

    Of the embedding, where it is not the head too, a step reads a row a token: it is left out of the weights. So are
    experts, of which a token multiplies with those that it has chosen, and a step reads these.
    """
    config = model.config
    arrays = {id(array): array for array in (*model.weights, *model.head)}.values()
    table = config.vocab_size * config.hidden_size
    tables = 1 if config.tie_word_embeddings else 2
    experts = _expert_costs(model)
    every = sum(kind.bytes * kind.count for kind in experts) // model.dtype.itemsize
    chosen = sum(kind.bytes * kind.chosen for kind in experts) // model.dtype.itemsize
    read = sum(array.nbytes for array in arrays) - ((tables - 1) * table + every) * model.dtype.itemsize
    return StepCosts(
        weight_bytes=read,
        token_flops=2 * (sum(array.size for array in arrays) - tables * table - every + chosen),
        scored_flops=2 * table,
        kv_bytes=tuple(_kv_values(group) * model.dtype.itemsize for group in config.kv_groups),
        pair_flops=tuple(_pair_flops(config, group) for group in config.kv_groups),
        experts=experts,
    )


def _expert_costs(model: LoadedModel) -> tuple[ExpertCosts, ...]:
    """An entry for all layers with the same MLP that is experts."""
    config = model.config
    return tuple(
        ExpertCosts(mlp.experts.count, mlp.experts.chosen, layers * _expert_size(config, mlp) * model.dtype.itemsize)
        for mlp, layers in Counter(layer.mlp for layer in config.layers).items()
        if mlp.experts is not None
    )


def _expert_size(config: DecoderConfig, mlp: MlpKind) -> int:
    """Numbers in the weights of one expert: gate, up and down, and their biases."""
    assert mlp.experts is not None
    inner, hidden = mlp.experts.size, config.hidden_size
    return 3 * inner * hidden + (2 * inner + hidden if mlp.bias else 0)


def _kv_values(group: LayerGroup) -> int:
    """Numbers that a group's layers keep of a token."""
    return len(group.layers) * group.kv.heads * (group.kv.key_dim + group.kv.value_dim)


def _pair_flops(config: DecoderConfig, group: LayerGroup) -> int:
    """Operations of a query and a key in a group's layers: the score, and what it adds."""
    heads = sum(config.layers[layer].attention.num_heads for layer in group.layers)
    return 2 * heads * (group.kv.key_dim + group.kv.value_dim)
