"""Projections around paged attention."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxinfer.layers.linear import Linear
from jaxinfer.layers.norm import norm
from jaxinfer.layers.param import held, matrix
from jaxinfer.layers.rope import Rotation, rotate
from jaxinfer.layers.vectors import LayerVectors
from jaxinfer.model_config.layer_kind import AttentionKind, NormKind, Temperature
from jaxinfer.quantization.scheme import LayerSchemes


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
    parted: whether devices share the columns of out, which `LoadedModel.build` says.
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
        self.kind, self.parted = kind, False
        heads, group, dim = kind.num_kv_heads, kind.group_size, kind.head_dim
        axes = ("layers",) * len(lead)
        qkv_axes = (*axes, "kv_heads", "q_per_kv", "head_dim", "embed")
        inputs = hidden if inputs is None else inputs
        self.qkv = matrix((*lead, heads, group + 2, dim, inputs), qkv_axes, dtype, inputs**-0.5, schemes.qkv)
        columns, out_axes = heads * group * dim, (*axes, "embed", "kv_heads")
        self.out = matrix((*lead, hidden, columns), out_axes, dtype, columns**-0.5, schemes.out)

    def split(self, x: jax.Array, vectors: LayerVectors, positions: jax.Array, by: Rotation | None) -> Heads:
        """x [T, inputs] to heads; q and k normed, then turned where the layer knows positions ([T] int32)."""
        qkv = Linear(held(self.qkv), vectors.get("qkv_bias"))(x)
        q, k, v = qkv[:, :, :-2], qkv[:, :, -2], qkv[:, :, -1]
        if self.kind.qk_norm is not None:
            q, k = self._normed(self.kind.qk_norm, q, k, vectors)
        if by is not None:
            q, k = rotate(q, by), rotate(k, by)
        if self.kind.temperature is not None:
            q = q * _growth(self.kind.temperature, positions).astype(q.dtype)[:, None, None, None]
        sinks = vectors["sinks"].reshape(-1).astype(jnp.float32) if self.kind.sinks else None
        return Heads(q.reshape(q.shape[0], -1, q.shape[-1]), k, v, sinks, vectors.get("kv_scale"))

    def _normed(self, kind: NormKind, q: jax.Array, k: jax.Array, vectors: LayerVectors) -> tuple[jax.Array, jax.Array]:
        """q [T, Hkv, G, D] and k [T, Hkv, D], normed over a head's channels or over all that a token has."""
        of_q, of_k = vectors["q_norm"], vectors["k_norm"]
        if self.kind.qk_norm_over == "head":
            return norm(kind, q, of_q), norm(kind, k, of_k)
        axes = 3 if self.kind.qk_norm_over == "projection" else 1
        return norm(kind, q, of_q, axes=axes), norm(kind, k[:, :, None], of_k, axes=axes)[:, :, 0]

    def join(self, heads: jax.Array, vectors: LayerVectors) -> jax.Array:
        """Heads' outputs [T, Hq, D] to [T, hidden]."""
        return Linear(held(self.out), vectors.get("out_bias"), self.parted)(heads)


def _growth(by: Temperature, positions: jax.Array) -> jax.Array:
    """Return the factors of queries at `positions`, [T] float32."""
    return 1 + by.beta * jnp.log1p((positions // by.original).astype(jnp.float32))
