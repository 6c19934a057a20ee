"""MLPs, gated or plain."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from jaxinfer.layers.context import LayerContext
from jaxinfer.layers.gating import activated, gated
from jaxinfer.layers.padding import without_padding
from jaxinfer.layers.param import QuantizedParam, Vector, matrix
from jaxinfer.model_config.mlp_kind import MlpKind
from jaxinfer.quantization.scheme import LayerSchemes, Scheme

_TILE_ROWS = 8
"""Rows of a TPU's tile of bfloat16 or float32."""


def gate_up_block(size: int) -> int:
    """Channels of gate that lie together before as many of up: 128, a TPU's vector width, or fewer such that the
    blocks can be split over 16 devices where the channels can; but no fewer than a TPU's tile has rows, or it copies
    the weight in every step to flatten it (compiled for a v6e: gpt-oss, 2880 channels an expert)."""
    least = _TILE_ROWS if size % _TILE_ROWS == 0 else 1
    return max(least, math.gcd(size, 16 * 128) // 16)


class Mlp(nnx.Module):
    """down(act(gate(x)) * up(x)), or down(act(up(x))) where the kind is not gated.

    gate_up: [ff / B, 2, B, hidden], gate and up in turns of B = gate_up_block(ff) channels, so that the first axis can
    be sharded and the rest flattened into one matrix. up: [ff, hidden]. down: [hidden, ff]. `lead` axes come before.
    schemes: how they are held.
    """

    def __init__(self, kind: MlpKind, schemes: LayerSchemes, hidden: int, dtype: jnp.dtype, lead: tuple[int, ...] = ()):
        self.kind = kind
        axes, ff = ("layers",) * len(lead), kind.size
        if kind.gated:
            self.gate_up = gate_up_param(ff, hidden, dtype, lead, axes, schemes.gate_up)
        else:
            self.up = matrix((*lead, ff, hidden), (*axes, "mlp", "embed"), dtype, hidden**-0.5, schemes.up)
        self.down = matrix((*lead, hidden, ff), (*axes, "embed", "mlp"), dtype, ff**-0.5, schemes.down)

    @staticmethod
    def vectors(kind: MlpKind, hidden: int) -> dict[str, Vector]:
        """Return the vectors of a layer with it, by name."""
        if not kind.bias:
            return {}
        down = {"down_bias": Vector((hidden,), ("embed",), 0.1)}
        if not kind.gated:
            return {"up_bias": Vector((kind.size,), ("mlp",), 0.1), **down}
        return {"gate_up_bias": gate_up_bias(kind.size), **down}

    def __call__(self, x: jax.Array, context: LayerContext) -> tuple[jax.Array, None]:
        """x [T, hidden] to [T, hidden]; None: it has no experts whose rows could be counted."""
        if self.kind.gated:
            inner = gated(self.kind, context.linear(self.gate_up, "gate_up_bias")(x))
        else:
            inner = activated(self.kind, context.linear(self.up, "up_bias")(x))
        if self.kind.bias:
            inner = without_padding(inner, context.dispatch.real)  # a bias made it more than 0
        return context.linear(self.down, "down_bias")(inner), None


def gate_up_bias(size: int, channels: str = "mlp") -> Vector:
    """The bias of gate_up of `size` channels. channels: the name of their axis."""
    block = gate_up_block(size)
    return Vector((size // block, 2, block), (channels, None, None), 0.1)


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
