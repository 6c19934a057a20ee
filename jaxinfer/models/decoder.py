"""The one decoder: token ids to hidden states, with KV in blocks that the caller attends over."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from jaxinfer.layers.attention import Attention, HeadNorms
from jaxinfer.layers.embedding import embed, scores
from jaxinfer.layers.mlp import Mlp, gate_up_block
from jaxinfer.layers.norm import rms_norm
from jaxinfer.layers.param import param, value
from jaxinfer.layers.rope import Rotation, rotation
from jaxinfer.layers.stack import Layout, layers, period
from jaxinfer.model_config.decoder_config import DecoderConfig

KV = tuple[jax.Array, ...]

Attend = Callable[[jax.Array, jax.Array, jax.Array, KV, int, jax.Array | int], tuple[jax.Array, KV]]
"""attend(q [T, Hq, D], k, v [T, Hkv, D], kv, group, layer in the group) -> (out [T, Hq, D], kv)."""


class Block(nnx.Module):
    """The matrices of one layer; with `lead`, of as many."""

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype, lead: tuple[int, ...] = ()):
        self.attention = Attention(config, dtype, lead)
        self.mlp = Mlp(config, dtype, lead)


class Vectors(nnx.Module):
    """Norms and biases of all layers, stacked: one leaf each, since every leaf costs time at dispatch."""

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype):
        hidden, dim, heads, count = config.hidden_size, config.head_dim, config.num_kv_heads, config.num_layers
        ff, group, block = config.intermediate_size, config.group_size + 2, gate_up_block(config.intermediate_size)

        def vector(present: bool, shape: tuple[int, ...], axes: tuple[str | None, ...], std: float | None):
            return nnx.data(param((count, *shape), ("layers", *axes), dtype, std) if present else None)

        self.input_norm = vector(True, (hidden,), ("embed",), None)
        self.mlp_norm = vector(True, (hidden,), ("embed",), None)
        self.q_norm = vector(config.qk_norm, (dim,), ("head_dim",), None)
        self.k_norm = vector(config.qk_norm, (dim,), ("head_dim",), None)
        self.qkv_bias = vector(config.qkv_bias, (heads, group, dim), ("kv_heads", "q_per_kv", "head_dim"), 0.5)
        self.out_bias = vector(config.out_bias, (hidden,), ("embed",), 0.1)
        self.gate_up_bias = vector(config.mlp_bias, (ff // block, 2, block), ("mlp", None, None), 0.1)
        self.down_bias = vector(config.mlp_bias, (hidden,), ("embed",), 0.1)

    def at(self, name: str, layer: jax.Array | int) -> jax.Array | None:
        """One vector of one layer; None where the model has none."""
        stacked = getattr(self, name)
        return None if stacked is None else value(stacked)[layer]


class Decoder(nnx.Module):
    """A decoder without its head. Parameters are descriptions until `LoadedModel.build` gives them arrays.

    layout `unrolled`: one set of leaves a layer. `stacked`: matrices with a leading axis, run under lax.scan.
    """

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype, layout: Layout = "unrolled"):
        self.config = config
        shape = (config.vocab_size, config.hidden_size)
        self.embed = param(shape, ("vocab", "embed"), dtype, 3 * config.hidden_size**-0.5)
        self.norm = param((config.hidden_size,), ("embed",), dtype, None)
        self.vectors = Vectors(config, dtype)
        count = config.num_layers if layout == "unrolled" else period(config.windows)
        self.repeats = None if layout == "unrolled" else config.num_layers // count
        lead = () if self.repeats is None else (self.repeats,)
        self.blocks = nnx.List([Block(config, dtype, lead) for _ in range(count)])

    def __call__(self, tokens: jax.Array, positions: jax.Array, kv: KV, attend: Attend) -> tuple[jax.Array, KV]:
        """tokens, positions: [T] int32. kv: an array of blocks a KV group. Returns hidden [T, d], unnormed; kv."""
        by = rotation(self.config.rope, self.config.head_dim, positions)
        places, groups = self.config.group_places, self.config.kv_groups
        count = len(self.blocks)
        # Layers of a group in one repeat: how far a repeat moves the index in the group.
        stride = [0 if self.repeats is None else len(group.layers) // self.repeats for group in groups]

        def step(block: Block, place: int, repeat: jax.Array | int, carry: tuple[jax.Array, KV]):
            group, index = places[place]
            layer, index = repeat * count + place, repeat * stride[group] + index
            x, kv = carry
            mixed, kv = self._mix(block.attention, x, layer, by, lambda q, k, v: attend(q, k, v, kv, group, index))
            x = x + mixed
            normed = rms_norm(x, self._vector("mlp_norm", layer), self.config.rms_norm_eps)
            x = x + block.mlp(normed, self.vectors.at("gate_up_bias", layer), self.vectors.at("down_bias", layer))
            return x, kv

        return layers(list(self.blocks), self.repeats, step, (embed(value(self.embed), tokens), kv))

    def final_norm(self, hidden: jax.Array) -> jax.Array:
        """The norm before the head, over rows [S, d]."""
        return rms_norm(hidden, value(self.norm), self.config.rms_norm_eps)

    def _mix(self, attention: Attention, x: jax.Array, layer: jax.Array | int, by: Rotation, attend) -> tuple:
        normed = rms_norm(x, self._vector("input_norm", layer), self.config.rms_norm_eps)
        norms = None
        if self.config.qk_norm:
            norms = HeadNorms(self._vector("q_norm", layer), self._vector("k_norm", layer), self.config.rms_norm_eps)
        out, kv = attend(*attention.split(normed, self.vectors.at("qkv_bias", layer), norms, by))
        return attention.join(out, self.vectors.at("out_bias", layer)), kv

    def _vector(self, name: str, layer: jax.Array | int) -> jax.Array:
        return value(getattr(self.vectors, name))[layer]


class Head(nnx.Module):
    """The output matrix of a model whose embedding is not tied to it."""

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype):
        shape = (config.vocab_size, config.hidden_size)
        self.table = param(shape, ("vocab", "embed"), dtype, 3 * config.hidden_size**-0.5)


def logits(head: tuple[jax.Array, ...], hidden: jax.Array) -> jax.Array:
    """hidden [S, d], normed, to [S, vocab] float32. head: the head's leaves, (table [vocab, d],)."""
    return scores(head[0], hidden)
