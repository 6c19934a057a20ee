"""MLPs, gated or plain."""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from jaxinfer.layers.linear import Linear
from jaxinfer.layers.padding import without_padding
from jaxinfer.layers.param import QuantizedParam, held, matrix
from jaxinfer.model_config.formulas import ACTIVATIONS
from jaxinfer.model_config.mlp_kind import Clamp, MlpKind
from jaxinfer.quantization.scheme import LayerSchemes, Scheme

_TILE_ROWS = 8
"""Rows of a TPU's tile of bfloat16 or float32."""


def gate_up_block(size: int) -> int:
    """Channels of gate that lie together before as many of up: 128, a TPU's vector width, or fewer such that the
    blocks can be split over 16 devices where the channels can; but no fewer than a TPU's tile has rows, or it copies
    the weight in every step to flatten it (compiled for a v6e: gpt-oss, 2880 channels an expert)."""
    least = _TILE_ROWS if size % _TILE_ROWS == 0 else 1
    return max(least, math.gcd(size, 16 * 128) // 16)


def gated(kind: MlpKind, gate_up: jax.Array) -> jax.Array:
    """gate_up [T, ff / B, 2, B] to what goes into the second product, [T, ff / B, B]."""
    gate, up = gate_up[:, :, 0], gate_up[:, :, 1]
    if kind.clamp is not None:
        return _clamped(kind.clamp, gate, up)
    return _activated(kind, gate) * up


def _activated(kind: MlpKind, x: jax.Array) -> jax.Array:
    return ACTIVATIONS[kind.activation].formula(jax, x)


def _clamped(clamp: Clamp, gate: jax.Array, up: jax.Array) -> jax.Array:
    gate, up = jnp.minimum(gate, clamp.limit), jnp.clip(up, -clamp.limit, clamp.limit)
    return gate * jax.nn.sigmoid(gate * clamp.alpha) * (up + 1)


class Mlp(nnx.Module):
    """down(act(gate(x)) * up(x)), or down(act(up(x))) where the kind is not gated.

    gate_up: [ff / B, 2, B, hidden], gate and up in turns of B = gate_up_block(ff) channels, so that the first axis can
    be sharded and the rest flattened into one matrix. up: [ff, hidden]. down: [hidden, ff]. `lead` axes come before.
    schemes: how they are held. parted: whether devices share the columns of down, which `LoadedModel.build` says.
    """

    def __init__(self, kind: MlpKind, schemes: LayerSchemes, hidden: int, dtype: jnp.dtype, lead: tuple[int, ...] = ()):
        self.kind, self.parted = kind, False
        axes, ff = ("layers",) * len(lead), kind.size
        if kind.gated:
            self.gate_up = gate_up_param(ff, hidden, dtype, lead, axes, schemes.gate_up)
        else:
            self.up = matrix((*lead, ff, hidden), (*axes, "mlp", "embed"), dtype, hidden**-0.5, schemes.up)
        self.down = matrix((*lead, hidden, ff), (*axes, "embed", "mlp"), dtype, ff**-0.5, schemes.down)

    def __call__(self, x: jax.Array, vectors: Mapping[str, jax.Array], real: jax.Array | None = None) -> jax.Array:
        """x: [T, hidden]. vectors: gate_up_bias [ff / B, 2, B] or up_bias [ff], and down_bias [hidden], if any. real:
        as of `without_padding`."""
        if self.kind.gated:
            inner = gated(self.kind, Linear(held(self.gate_up), vectors.get("gate_up_bias"))(x))
        else:
            inner = _activated(self.kind, Linear(held(self.up), vectors.get("up_bias"))(x))
        if self.kind.bias:
            inner = without_padding(inner, real)  # a bias made it more than 0
        return Linear(held(self.down), vectors.get("down_bias"), self.parted)(inner)


def gate_up_param(
    size: int,
    hidden: int,
    dtype: jnp.dtype,
    lead: tuple[int, ...],
    axes: tuple[str | None, ...],
    scheme: Scheme | None,
    channels: str = "mlp",
) -> nnx.Param | QuantizedParam:
    """gate_up of `size` channels, [*lead, size / B, 2, B, hidden]; axes: names of lead axes, channels: of theirs."""
    block = gate_up_block(size)
    shape = (*lead, size // block, 2, block, hidden)
    return matrix(shape, (*axes, channels, None, None, "embed"), dtype, hidden**-0.5, scheme)
