"""What a step must read and multiply, counted from shapes."""

from typing import NamedTuple

from jaxinfer.model_config.decoder_config import DecoderConfig


class Work(NamedTuple):
    """One step: bytes of device memory that must move at least, and floating-point operations of its products."""

    bytes: int
    flops: int


def matrix_elements(config: DecoderConfig) -> int:
    """Elements of the matrices that every token is multiplied with, the head not included."""
    heads = config.num_heads * config.head_dim
    keys = 2 * config.num_kv_heads * config.head_dim
    layer = config.hidden_size * (heads + keys) + heads * config.hidden_size
    layer += 3 * config.hidden_size * config.intermediate_size
    return config.num_layers * layer


def step_work(config: DecoderConfig, itemsize: int, tokens: int, rows: int, context: int) -> Work:
    """A step of `rows` rows of `tokens` tokens each, every row with `context` tokens in KV before it.

    Weights are read once, keys and values once a row, new ones are written; the head is multiplied with one token a
    row. Activations, block tables and the sampler are not counted: the share of a ceiling is a little too low for it.
    """
    head = config.vocab_size * config.hidden_size
    matrices = matrix_elements(config)
    token_kv = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    seen = rows * sum(context + i + 1 for i in range(tokens))
    moved = matrices + head + rows * (context + 2 * tokens) * token_kv
    products = rows * (tokens * matrices + head) + 2 * config.num_layers * config.num_heads * config.head_dim * seen
    return Work(moved * itemsize, 2 * products)
