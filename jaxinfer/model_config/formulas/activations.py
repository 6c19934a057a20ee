"""Activations of MLPs, by name."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Activation(NamedTuple):
    """formula: (jax, x) to the same shape. declared: its names in config.json."""

    formula: Callable[[Any, Any], Any]
    declared: tuple[str, ...]


ACTIVATIONS = {
    "silu": Activation(lambda jax, x: jax.nn.silu(x), ("silu", "swish")),
    "gelu": Activation(lambda jax, x: jax.nn.gelu(x, approximate=False), ("gelu",)),
    "gelu_tanh": Activation(lambda jax, x: jax.nn.gelu(x, approximate=True), ("gelu_new", "gelu_pytorch_tanh")),
    "relu": Activation(lambda jax, x: jax.nn.relu(x), ("relu",)),
}
