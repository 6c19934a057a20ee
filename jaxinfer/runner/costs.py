"""What the steps of a model cost: sizes for the engine's totals of operations and bytes."""

from jaxinfer.engine.stats.step_cost import StepCosts
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
    layers = [len(group.layers) for group in config.kv_groups]
    return StepCosts(
        weight_bytes=read,
        token_flops=2 * (sum(array.size for array in arrays) - tables * table),
        scored_flops=2 * table,
        kv_bytes=tuple(2 * n * config.num_kv_heads * config.head_dim * model.dtype.itemsize for n in layers),
        pair_flops=tuple(4 * n * config.num_heads * config.head_dim for n in layers),
    )
