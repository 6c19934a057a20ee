"""The one decoder: token ids to hidden states, with KV in blocks that the caller attends over."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxinfer_kernels.stack import alone

from jaxinfer.layers.attention import Heads
from jaxinfer.layers.block import Block
from jaxinfer.layers.dispatch import Dispatch
from jaxinfer.layers.embedding import embed, scores
from jaxinfer.layers.norm import norm
from jaxinfer.layers.param import Matrix, QuantizedParam, held, matrix, param, value
from jaxinfer.layers.rope import Rotation, rotation
from jaxinfer.layers.stack import Layout, layers, repeats_of
from jaxinfer.layers.vectors import Vectors
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import AttentionKind, Scoring
from jaxinfer.parallel.shards import Shards
from jaxinfer.quantization.array import QuantizedArray
from jaxinfer.quantization.scheme import Scheme

KV = tuple[jax.Array, ...]


class Place(NamedTuple):
    """Place of a layer's attention: its KV group and its index there, and how scores are computed."""

    group: int
    index: jax.Array | int
    scoring: Scoring


Attend = Callable[[Heads, KV, Place], tuple[jax.Array, KV]]
"""attend(heads, kv, place) -> (out [T, Hq, D], kv)."""


class Run(NamedTuple):
    """Results of the layers. hidden: [T, d], unnormed. load: of experts. tapped: inputs of some layers, [T, d] each."""

    hidden: jax.Array
    kv: KV
    load: jax.Array | None
    tapped: tuple[jax.Array, ...] = ()


class Decoder(nnx.Module):
    """A decoder without its head, or a stage of one: the first alone has the embedding, the last the norm behind the
    layers. Parameters are descriptions until `LoadedModel.build` gives them arrays.

    layout `unrolled`: one set of leaves a layer. `stacked`: matrices of layers that repeat have a leading axis and run
    under lax.scan.
    """

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype, layout: Layout = "unrolled"):
        self.config, self.dtype, hidden = config, jnp.dtype(dtype), config.hidden_size
        if config.embeds:
            self.embed = embedding(config, dtype)
        if config.embeds and config.learned_positions:
            shape = (config.max_position_embeddings, hidden)
            self.positions = param(shape, (None, "embed"), dtype, 3 * hidden**-0.5)
        if config.ends:
            self.norm = param((hidden,), ("embed",), dtype, None, config.norm.offset)
        if config.ends and config.norm.bias:
            self.norm_bias = param((hidden,), ("embed",), dtype, 0.1)
        self.vectors = Vectors(config.layers, hidden, dtype)
        self.repeats = repeats_of(config.layers, layout)
        leads = [() if i < self.repeats.prefix else (self.repeats.count,) for i in range(self.repeats.blocks)]
        self.blocks = nnx.List([Block(config.layers[i], hidden, dtype, lead) for i, lead in enumerate(leads)])

    def __call__(self, tokens: jax.Array, positions: jax.Array, kv: KV, attend: Attend) -> tuple[jax.Array, KV]:
        """tokens, positions: [T] int32. kv: an array of blocks a KV group. Returns hidden [T, d], unnormed; kv."""
        return self.run(tokens, positions, kv, None, attend, Dispatch())[:2]

    def run(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        kv: KV,
        load: jax.Array | None,
        attend: Attend,
        dispatch: Dispatch,
        taps: Sequence[int] = (),
    ) -> Run:
        """Run the layers as `__call__` does, with rows dispatched to experts as `dispatch` has it. tokens: in a stage
        that is not the first, the hidden states [T, d] of the one before. load: [layers with experts, E] uint32, rows
        that each expert has got so far, None if nobody wants to know; returned with those of this call. taps: layers
        whose inputs are returned too; the number of all layers stands for the output of the last."""
        rotations, groups, places = self._rotations(positions), self.config.kv_groups, self.config.group_places

        def step(block: Block, number: int, repeat: jax.Array | int, carry: Run) -> Run:
            (x, kv, load, tapped), kind = carry, block.kind.attention
            tapped = _tapped(taps, number + self.repeats.period * repeat, x, tapped)
            group = places[number].group
            index = self.repeats.ordinal(groups[group].layers, number, repeat)
            assert index is not None
            place = Place(group, index, kind.scoring)
            vectors = self.vectors.of_layer(self.repeats, number, repeat)
            turn = rotations[kind]
            x, kv, sizes = block(x, vectors, positions, turn, lambda heads: attend(heads, kv, place), dispatch)
            if load is not None and sizes is not None:
                layer = self.repeats.ordinal(self.config.expert_layers, number, repeat)
                load = load.at[layer, : len(sizes)].add(sizes.astype(load.dtype))
            return Run(x, kv, load, tapped)

        x = self._embedded(tokens, positions) if self.config.embeds else tokens
        first = Run(x, kv, load, tuple(jnp.zeros_like(x) for _ in taps))
        last = layers(list(self.blocks), self.repeats, step, first)
        return last._replace(tapped=_tapped(taps, self.config.num_layers, last.hidden, last.tapped))

    def _embedded(self, tokens: jax.Array, positions: jax.Array) -> jax.Array:
        x = embed(held(self.embed), tokens, self.dtype)
        if self.config.embedding_scale != 1:
            x = x * jnp.asarray(self.config.embedding_scale, x.dtype)  # rounded as the families' own code does
        return x + value(self.positions)[positions] if self.config.learned_positions else x

    def _rotations(self, positions: jax.Array) -> dict[AttentionKind, Rotation | None]:
        """Compute the rotation for each kind of attention, once for kinds that rotate alike."""
        kinds = dict.fromkeys(layer.attention for layer in self.config.layers)
        turned = dict.fromkeys((kind.rope, kind.head_dim) for kind in kinds)
        made = {(rope, dim): rotation(rope, dim, positions) if rope is not None else None for rope, dim in turned}
        return {kind: made[kind.rope, kind.head_dim] for kind in kinds}

    def final_norm(self, hidden: jax.Array) -> jax.Array:
        """The norm before the head, over rows [S, d]."""
        bias = value(self.norm_bias) if self.config.norm.bias else None
        return norm(self.config.norm, hidden, value(self.norm), bias)


def _tapped(
    taps: Sequence[int], layer: jax.Array | int, x: jax.Array, tapped: tuple[jax.Array, ...]
) -> tuple[jax.Array, ...]:
    """`tapped` with x, the input of `layer`, in the places of those that are asked for."""
    if isinstance(layer, int):
        return tuple(x if tap == layer else before for tap, before in zip(taps, tapped, strict=True))
    return tuple(jnp.where(tap == layer, x, before) for tap, before in zip(taps, tapped, strict=True))


def embedding(config: DecoderConfig, dtype: jnp.dtype) -> nnx.Param | QuantizedParam:
    """The table of tokens, [rows, hidden]."""
    std = 3 * config.hidden_size**-0.5 / config.embedding_scale
    return matrix(config.table_shape, ("vocab", "embed"), dtype, std, config.tables.embed)


class TiedHead(nnx.Module):
    """The output matrix of a stage that has a tied head and not the embedding: a table of its own with its values."""

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype):
        self.embed = embedding(config, dtype)


class Head(nnx.Module):
    """The output matrix of a model whose embedding is not tied to it."""

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype):
        self.table = matrix(
            config.table_shape, ("vocab", "embed"), dtype, 3 * config.hidden_size**-0.5, config.tables.table
        )
        if config.head_bias:
            self.table_bias = param(config.table_shape[:1], ("vocab",), dtype, 0.1)


def logits(
    config: DecoderConfig,
    head: tuple[jax.Array, ...],
    hidden: jax.Array,
    backend: str = "xla",
    shards: Shards | None = None,
) -> jax.Array:
    """hidden [S, d], normed, to [S, vocab] float32. head: the parts of the table [vocab, d], and bias [vocab] if there
    is one. backend: of the kernels that multiply the table. shards: of a quantised one, as QuantizedArray has them."""
    table, rest = _table(config.head_scheme, head, backend, shards)
    found = scores(table, hidden)
    if config.head_bias:
        found = found + rest[0].astype(jnp.float32)
    if config.logits_scale != 1:
        found = found * config.logits_scale
    if config.logits_soft_cap is not None:
        found = config.logits_soft_cap * jnp.tanh(found / config.logits_soft_cap)
    return found


def _table(
    scheme: Scheme | None, head: tuple[jax.Array, ...], backend: str, shards: Shards | None
) -> tuple[Matrix, tuple[jax.Array, ...]]:
    """The matrix that gives logits, and what of the head is left."""
    if scheme is None:
        return alone(head[0]) if backend == "native" else head[0], head[1:]
    count = len(scheme.parts)
    parts = dict(zip(scheme.parts, head[:count], strict=True))
    return QuantizedArray(scheme, **parts, backend=backend, shards=shards), head[count:]
