"""Gated MLP."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from jaxinfer.layers.linear import project
from jaxinfer.layers.param import param, value
from jaxinfer.model_config.decoder_config import Activation, DecoderConfig


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


def gate_up_block(intermediate_size: int) -> int:
    """Channels of gate that lie together before as many of up: 128, a TPU's vector width, or fewer such that the
    blocks can be split over 16 devices where the channels can."""
    return max(1, math.gcd(intermediate_size, 16 * 128) // 16)


class Mlp(nnx.Module):
    """down(act(gate(x)) * up(x)).

    gate_up: [ff / B, 2, B, hidden], gate and up in turns of B = gate_up_block(ff) channels, so that the first axis can
    be sharded and the rest flattened into one matrix. down: [hidden, ff]. `lead` axes come before.
    """

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype, lead: tuple[int, ...] = ()):
        hidden, ff = config.hidden_size, config.intermediate_size
        block = gate_up_block(ff)
        axes = ("layers",) * len(lead)
        self.gate_up = param(
            (*lead, ff // block, 2, block, hidden), (*axes, "mlp", None, None, "embed"), dtype, hidden**-0.5
        )
        self.down = param((*lead, hidden, ff), (*axes, "embed", "mlp"), dtype, ff**-0.5)
        self.activation: Activation = config.activation

    def __call__(self, x: jax.Array, gate_up_bias: jax.Array | None, down_bias: jax.Array | None) -> jax.Array:
        """x: [T, hidden]; biases [ff / B, 2, B] and [hidden]."""
        gate_up = project(x, value(self.gate_up), gate_up_bias)
        inner = ACTIVATIONS[self.activation](gate_up[:, :, 0]) * gate_up[:, :, 1]
        return project(inner, value(self.down), down_bias)
