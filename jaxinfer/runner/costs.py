"""What the steps of a model cost: sizes for the engine's totals of operations and bytes."""

from jaxinfer.engine.stats.step_cost import StepCosts
from jaxinfer.model_config.decoder_config import DecoderConfig, LayerGroup
from jaxinfer.models.loaded import LoadedModel


def step_costs(model: LoadedModel) -> StepCosts:
    """From the arrays of a model. A multiplication and an addition are two operations.

    Of the embedding, where it is not the head too, a step reads a row a token: it is left out of the weights.
    """
    config = model.config
    arrays = {id(array): array for array in (*model.weights, *model.head)}.values()
    table = config.vocab_size * config.hidden_size
    tables = 1 if config.tie_word_embeddings else 2
    read = sum(array.nbytes for array in arrays) - (tables - 1) * table * model.dtype.itemsize
    return StepCosts(
        weight_bytes=read,
        token_flops=2 * (sum(array.size for array in arrays) - tables * table),
        scored_flops=2 * table,
        kv_bytes=tuple(_kv_values(group) * model.dtype.itemsize for group in config.kv_groups),
        pair_flops=tuple(_pair_flops(config, group) for group in config.kv_groups),
    )


def _kv_values(group: LayerGroup) -> int:
    """Numbers that a group's layers keep of a token."""
    return len(group.layers) * group.kv.heads * (group.kv.key_dim + group.kv.value_dim)


def _pair_flops(config: DecoderConfig, group: LayerGroup) -> int:
    """Operations of a query and a key in a group's layers: the score, and what it adds."""
    heads = sum(config.layers[layer].attention.num_heads for layer in group.layers)
    return 2 * heads * (group.kv.key_dim + group.kv.value_dim)
