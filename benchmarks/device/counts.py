"""Count from shapes the bytes that a step must read and the products that it must compute."""

from typing import NamedTuple

from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import LayerKind


class Work(NamedTuple):
    """One step: bytes of device memory that must move at least, and floating-point operations of its products."""

    bytes: int
    flops: int


def matrix_elements(config: DecoderConfig) -> int:
    """Elements of the matrices that every token is multiplied with, the head not included."""
    return sum(_layer_elements(layer, config.hidden_size) for layer in config.layers)


def _layer_elements(layer: LayerKind, hidden: int) -> int:
    heads = layer.mixer.num_heads * layer.mixer.head_dim
    keys = 2 * layer.mixer.num_kv_heads * layer.mixer.head_dim
    return hidden * (heads + keys) + heads * hidden + 3 * hidden * layer.mlp.size


def step_work(config: DecoderConfig, itemsize: int, tokens: int, rows: int, context: int) -> Work:
    """A step of `rows` rows of `tokens` tokens each, every row with `context` tokens in KV before it.

    Weights are read once, keys and values once a row, new ones are written; the head is multiplied with one token a
    row. Activations, block tables and the sampler are not counted: the share of a ceiling is a little too low for it.
    """
    head = config.vocab_size * config.hidden_size
    matrices = matrix_elements(config)
    attentions = [layer.mixer for layer in config.layers]
    token_kv = sum(2 * attention.num_kv_heads * attention.head_dim for attention in attentions)
    queries = sum(attention.num_heads * attention.head_dim for attention in attentions)
    seen = rows * sum(context + i + 1 for i in range(tokens))
    moved = matrices + head + rows * (context + 2 * tokens) * token_kv
    products = rows * (tokens * matrices + head) + 2 * queries * seen
    return Work(moved * itemsize, 2 * products)
