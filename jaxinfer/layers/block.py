"""Block: one layer, of the kind that its config declares."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxinfer.layers.attention import Attention
from jaxinfer.layers.context import LayerContext
from jaxinfer.layers.experts import Experts
from jaxinfer.layers.mlp import Mlp
from jaxinfer.layers.norm import norm
from jaxinfer.layers.padding import without_padding
from jaxinfer.model_config.layer_kind import AttentionKind, LayerKind
from jaxinfer.model_config.mlp_kind import ExpertsKind, MlpKind

Kept = TypeVar("Kept")
PARTS: Mapping[type, Any] = {AttentionKind: Attention, MlpKind: Mlp, ExpertsKind: Experts}
"""Modules of a layer's parts by the kinds that declare them: made with (kind, schemes, hidden, dtype, lead), with
`vectors(kind, hidden)`. A mixer takes (x, context, attend) and returns its output and what is kept of the tokens; an
MLP takes (x, context) and returns its output and how many rows each of its experts got, None without experts."""


class Block(nnx.Module):
    """The matrices of one layer; with `lead`, of as many."""

    def __init__(self, kind: LayerKind, hidden: int, dtype: jnp.dtype, lead: tuple[int, ...] = ()):
        self.kind = kind
        of_all = (kind.schemes, hidden, dtype, lead)
        self.mixer, self.mlp = (PARTS[type(part)](part, *of_all) for part in (kind.mixer, kind.mlp))

    def __call__(
        self, x: jax.Array, context: LayerContext, attend: Callable[..., tuple[jax.Array, Kept]]
    ) -> tuple[jax.Array, Kept, jax.Array | None]:
        """x [T, hidden] through the layer. attend: of its mixer.

        Returns x, what is kept, and how many rows each of the layer's experts got, [E] int32, if it has any.
        """
        normed = self._before("input_norm", x, context)
        out, kept = self.mixer(normed, context, attend)
        mixed = self._after("attention_out_norm", out, context)
        if self.kind.parallel:
            inner, sizes = self.mlp(normed, context)
            return self._add(x, mixed + inner), kept, sizes
        x = self._add(x, mixed)
        inner, sizes = self.mlp(self._before("mlp_norm", x, context), context)
        return self._add(x, self._after("mlp_out_norm", inner, context)), kept, sizes

    def _before(self, name: str, x: jax.Array, context: LayerContext) -> jax.Array:
        normed = x if self.kind.norms == "after" else self._norm(name, x, context)
        return without_padding(normed, context.dispatch.real)

    def _after(self, name: str, x: jax.Array, context: LayerContext) -> jax.Array:
        return x if self.kind.norms == "before" else self._norm(name, x, context)

    def _norm(self, name: str, x: jax.Array, context: LayerContext) -> jax.Array:
        return norm(self.kind.norm, x, context.vectors[name], context.vectors.get(f"{name}_bias"))

    def _add(self, x: jax.Array, change: jax.Array) -> jax.Array:
        if self.kind.residual_scale == 1:
            return x + change
        # A scale that is rounded to bfloat16 first is wrong by up to 0.2 % in every layer.
        return x + (change.astype(jnp.float32) * self.kind.residual_scale).astype(x.dtype)
