"""Projections around paged attention."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxinfer.layers.context import LayerContext, LayerVectors
from jaxinfer.layers.norm import norm
from jaxinfer.layers.param import Axes, Vector, matrix
from jaxinfer.layers.rope import rotate
from jaxinfer.model_config.layer_kind import AttentionKind, NormKind, Scoring, Temperature
from jaxinfer.quantization.scheme import LayerSchemes

Kept = TypeVar("Kept")


class Heads(NamedTuple):
    """Inputs of one layer's attention: q [T, Hq, D], k and v [T, Hkv, D], and a sink a query head, [Hq] float32.

    kv_scale: [2] float32, divisors of k and v if they are kept in few bits.
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    sinks: jax.Array | None = None
    kv_scale: jax.Array | None = None


class Attention(nnx.Module):
    """q, k, v and output projections.

    qkv: [Hkv, G + 2, D, inputs]: for each KV head its G query heads, then k, then v, so that sharding over KV heads
    is sharding of one axis. out: [hidden, Hkv·G·D], one axis, since a TPU would copy the weight to merge its last
    axes. `lead` axes come before. schemes: how they are held. inputs: columns of qkv; None: as many as `hidden`.
    """

    def __init__(
        self,
        kind: AttentionKind,
        schemes: LayerSchemes,
        hidden: int,
        dtype: jnp.dtype,
        lead: tuple[int, ...] = (),
        inputs: int | None = None,
    ):
        self.kind = kind
        heads, group, dim = kind.num_kv_heads, kind.group_size, kind.head_dim
        axes = ("layers",) * len(lead)
        qkv_axes = (*axes, "kv_heads", "q_per_kv", "head_dim", "embed")
        inputs = hidden if inputs is None else inputs
        self.qkv = matrix((*lead, heads, group + 2, dim, inputs), qkv_axes, dtype, inputs**-0.5, schemes.qkv)
        columns, out_axes = heads * group * dim, (*axes, "embed", "kv_heads")
        self.out = matrix((*lead, hidden, columns), out_axes, dtype, columns**-0.5, schemes.out)

    @staticmethod
    def vectors(kind: AttentionKind, hidden: int) -> dict[str, Vector]:
        """Return the vectors of a layer with it, by name."""
        heads, group, dim = kind.num_kv_heads, kind.group_size, kind.head_dim
        axes: Axes = ("kv_heads", "q_per_kv", "head_dim")
        found = {}
        if kind.qk_norm is not None:
            for name, count in (("q_norm", group), ("k_norm", 1)):
                whole = Vector((heads, count, dim), axes, offset=kind.qk_norm.offset)
                one = Vector((dim,), ("head_dim",), offset=kind.qk_norm.offset)
                found[name] = one if kind.qk_norm_over == "head" else whole
        if kind.qkv_bias:
            found["qkv_bias"] = Vector((heads, group + 2, dim), axes, 0.5)
        if kind.out_bias:
            found["out_bias"] = Vector((hidden,), ("embed",), 0.1)
        if kind.sinks:
            found["sinks"] = Vector((heads, group), ("kv_heads", "q_per_kv"), 1.0)
        if kind.kv.scaled:
            found["kv_scale"] = Vector((2,), (None,), dtype="float32")
        return found

    def __call__(
        self, x: jax.Array, context: LayerContext, attend: Callable[[Heads, Scoring], tuple[jax.Array, Kept]]
    ) -> tuple[jax.Array, Kept]:
        """x [T, inputs] to [T, hidden], and what is kept. attend(heads, scoring) -> (out [T, Hq, D], kept)."""
        out, kept = attend(self._heads(x, context), self.kind.scoring)
        return context.linear(self.out, "out_bias")(out), kept

    def _heads(self, x: jax.Array, context: LayerContext) -> Heads:
        """x [T, inputs] to heads; q and k normed, then turned where the layer knows positions."""
        vectors, rotation = context.vectors, context.rotation
        qkv = context.linear(self.qkv, "qkv_bias")(x)
        q, k, v = qkv[:, :, :-2], qkv[:, :, -2], qkv[:, :, -1]
        if self.kind.qk_norm is not None:
            q, k = self._normed(self.kind.qk_norm, q, k, vectors)
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        if self.kind.temperature is not None:
            q = q * _growth(self.kind.temperature, context.positions).astype(q.dtype)[:, None, None, None]
        sinks = vectors["sinks"].reshape(-1).astype(jnp.float32) if self.kind.sinks else None
        return Heads(q.reshape(q.shape[0], -1, q.shape[-1]), k, v, sinks, vectors.get("kv_scale"))

    def _normed(self, kind: NormKind, q: jax.Array, k: jax.Array, vectors: LayerVectors) -> tuple[jax.Array, jax.Array]:
        """q [T, Hkv, G, D] and k [T, Hkv, D], normed over a head's channels or over all that a token has."""
        of_q, of_k = vectors["q_norm"], vectors["k_norm"]
        if self.kind.qk_norm_over == "head":
            return norm(kind, q, of_q), norm(kind, k, of_k)
        axes = 3 if self.kind.qk_norm_over == "projection" else 1
        return norm(kind, q, of_q, axes=axes), norm(kind, k[:, :, None], of_k, axes=axes)[:, :, 0]


def _growth(by: Temperature, positions: jax.Array) -> jax.Array:
    """Return the factors of queries at `positions`, [T] float32."""
    return 1 + by.beta * jnp.log1p((positions // by.original).astype(jnp.float32))
