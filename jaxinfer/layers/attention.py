"""Projections around paged attention."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxinfer.layers.linear import project
from jaxinfer.layers.norm import rms_norm
from jaxinfer.layers.param import param, value
from jaxinfer.layers.rope import Rotation, rotate
from jaxinfer.model_config.decoder_config import DecoderConfig


class HeadNorms(NamedTuple):
    """Norm weights of q and k, [D] each, and their epsilon."""

    q: jax.Array
    k: jax.Array
    eps: float


class Attention(nnx.Module):
    """q, k, v and output projections.

    qkv: [Hkv, G + 2, D, hidden]: for each KV head its G query heads, then k, then v, so that sharding over KV heads
    is sharding of one axis. out: [hidden, Hkv·G·D], one axis, since a TPU would copy the weight to merge its last
    axes. `lead` axes come before.
    """

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype, lead: tuple[int, ...] = ()):
        hidden, heads, group, dim = config.hidden_size, config.num_kv_heads, config.group_size, config.head_dim
        axes = ("layers",) * len(lead)
        qkv_axes = (*axes, "kv_heads", "q_per_kv", "head_dim", "embed")
        self.qkv = param((*lead, heads, group + 2, dim, hidden), qkv_axes, dtype, hidden**-0.5)
        columns = heads * group * dim
        self.out = param((*lead, hidden, columns), (*axes, "embed", "kv_heads"), dtype, columns**-0.5)

    def split(
        self, x: jax.Array, bias: jax.Array | None, norms: HeadNorms | None, by: Rotation
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """x [T, hidden] to q [T, Hq, D], k and v [T, Hkv, D]; q and k normed where norms are given, and rotated."""
        qkv = project(x, value(self.qkv), bias)
        q, k, v = qkv[:, :, :-2], qkv[:, :, -2], qkv[:, :, -1]
        if norms is not None:
            q, k = rms_norm(q, norms.q, norms.eps), rms_norm(k, norms.k, norms.eps)
        q, k = rotate(q, by), rotate(k, by)
        return q.reshape(q.shape[0], -1, q.shape[-1]), k, v

    def join(self, heads: jax.Array, bias: jax.Array | None) -> jax.Array:
        """Heads' outputs [T, Hq, D] to [T, hidden]."""
        return project(heads, value(self.out), bias)
