"""Block: one layer, of the kind that its config declares."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxinfer.layers.attention import Attention, Heads
from jaxinfer.layers.dispatch import Dispatch
from jaxinfer.layers.experts import Experts
from jaxinfer.layers.mlp import Mlp
from jaxinfer.layers.norm import norm
from jaxinfer.layers.padding import without_padding
from jaxinfer.layers.rope import Rotation
from jaxinfer.layers.vectors import LayerVectors
from jaxinfer.model_config.layer_kind import LayerKind

KV = TypeVar("KV")


class Block(nnx.Module):
    """The matrices of one layer; with `lead`, of as many."""

    def __init__(self, kind: LayerKind, hidden: int, dtype: jnp.dtype, lead: tuple[int, ...] = ()):
        self.kind = kind
        self.attention = Attention(kind.attention, kind.schemes, hidden, dtype, lead)
        self.mlp = (Mlp if kind.mlp.experts is None else Experts)(kind.mlp, kind.schemes, hidden, dtype, lead)

    def __call__(
        self,
        x: jax.Array,
        vectors: LayerVectors,
        positions: jax.Array,
        by: Rotation | None,
        attend: Callable[[Heads], tuple[jax.Array, KV]],
        dispatch: Dispatch,
    ) -> tuple[jax.Array, KV, jax.Array | None]:
        """x [T, hidden] at positions [T] int32, through the layer. attend(heads) -> (out [T, Hq, D], kv).

        Returns x, kv, and how many rows each of the layer's experts got, [E] int32, if it has any.
        """
        normed = self._before("input_norm", x, vectors, dispatch)
        out, kv = attend(self.attention.split(normed, vectors, positions, by))
        mixed = self._after("attention_out_norm", self.attention.join(out, vectors), vectors)
        if self.kind.parallel:
            inner, sizes = self._mlp(normed, vectors, dispatch)
            return self._add(x, mixed + inner), kv, sizes
        x = self._add(x, mixed)
        inner, sizes = self._mlp(self._before("mlp_norm", x, vectors, dispatch), vectors, dispatch)
        return self._add(x, self._after("mlp_out_norm", inner, vectors)), kv, sizes

    def _mlp(self, x: jax.Array, vectors: LayerVectors, dispatch: Dispatch) -> tuple[jax.Array, jax.Array | None]:
        if isinstance(self.mlp, Experts):
            return self.mlp(x, vectors, dispatch)
        return self.mlp(x, vectors, dispatch.real), None

    def _before(self, name: str, x: jax.Array, vectors: LayerVectors, dispatch: Dispatch) -> jax.Array:
        normed = x if self.kind.norms == "after" else self._norm(name, x, vectors)
        return without_padding(normed, dispatch.real)

    def _after(self, name: str, x: jax.Array, vectors: LayerVectors) -> jax.Array:
        return x if self.kind.norms == "before" else self._norm(name, x, vectors)

    def _norm(self, name: str, x: jax.Array, vectors: LayerVectors) -> jax.Array:
        return norm(self.kind.norm, x, vectors[name], vectors.get(f"{name}_bias"))

    def _add(self, x: jax.Array, change: jax.Array) -> jax.Array:
        if self.kind.residual_scale == 1:
            return x + change
        # A scale that is rounded to bfloat16 first is wrong by up to 0.2 % in every layer.
        return x + (change.astype(jnp.float32) * self.kind.residual_scale).astype(x.dtype)
