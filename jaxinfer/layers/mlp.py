"""Gated MLP."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from jaxinfer.layers.linear import project
from jaxinfer.layers.param import param, value
from jaxinfer.models.config import Activation, DecoderConfig


def _gelu_tanh(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=True)


def _gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=False)


ACTIVATIONS: dict[Activation, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": jax.nn.relu,
}


class Mlp(nnx.Module):
    """down(act(gate(x)) * up(x)). gate_up: [2, ff, hidden], gate first; down: [hidden, ff]. `lead` axes come before."""

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype, lead: tuple[int, ...] = ()):
        hidden, ff = config.hidden_size, config.intermediate_size
        axes = ("layers",) * len(lead)
        self.gate_up = param((*lead, 2, ff, hidden), (*axes, None, "mlp", "embed"), dtype, hidden**-0.5)
        self.down = param((*lead, hidden, ff), (*axes, "embed", "mlp"), dtype, ff**-0.5)
        self.activation = config.activation

    def __call__(self, x: jax.Array, gate_up_bias: jax.Array | None, down_bias: jax.Array | None) -> jax.Array:
        """x: [T, hidden]; biases [2, ff] and [hidden]."""
        gate_up = project("th,xfh->txf", x, value(self.gate_up), gate_up_bias)
        inner = ACTIVATIONS[self.activation](gate_up[:, 0]) * gate_up[:, 1]
        return project("tf,hf->th", inner, value(self.down), down_bias)
