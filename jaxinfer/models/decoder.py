"""The one decoder: token ids to hidden states, with KV in blocks that the caller attends over."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxinfer_kernels.stack import alone

from jaxinfer.layers.attention import Heads
from jaxinfer.layers.block import Block
from jaxinfer.layers.context import LayerContext, LayerVectors
from jaxinfer.layers.dispatch import Dispatch
from jaxinfer.layers.embedding import embed, scores
from jaxinfer.layers.linear import Linear
from jaxinfer.layers.norm import norm
from jaxinfer.layers.param import QuantizedParam, held, matrix, param, value
from jaxinfer.layers.rope import Rotation, rotation
from jaxinfer.layers.stack import Layout, layers, repeats_of
from jaxinfer.layers.vectors import Vectors
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.layer_kind import Scoring
from jaxinfer.model_config.rope_config import RopeConfig
from jaxinfer.parallel.shards import Shards
from jaxinfer.quantization.array import QuantizedArray

KV = tuple[jax.Array, ...]


class Place(NamedTuple):
    """Place of a layer's attention: its KV group and its index there, an int32 scalar, and how scores are computed."""

    group: int
    index: jax.Array
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
        rotations, groups = self._rotations(positions), self.config.kv_groups

        @partial(jax.jit, static_argnums=(0, 1))
        def layer(
            graph: nnx.GraphDef[Block],
            group: int,
            weights: nnx.State,
            x: jax.Array,
            kv: KV,
            vectors: LayerVectors,
            index: jax.Array,
        ) -> tuple[jax.Array, KV, jax.Array | None]:
            """One layer. Those of a kind share one trace, which would otherwise take most of the time of lowering."""
            block = nnx.merge(graph, weights)
            context = LayerContext(vectors, positions, dispatch, rotations[block.kind.mixer.rotary])
            return block(x, context, lambda heads, how: attend(heads, kv, Place(group, index, how)))

        def step(block: Block, number: int, repeat: jax.Array | int, carry: Run) -> Run:
            x, kv, load, tapped = carry
            tapped = _tapped(taps, number + self.repeats.period * repeat, x, tapped)
            group = next(i for i, one in enumerate(groups) if number in one.layers)
            index = self.repeats.ordinal(groups[group].layers, number, repeat)
            assert index is not None
            vectors = self.vectors.of_layer(self.repeats, number, repeat)
            graph, weights = nnx.split(block)
            x, kv, sizes = layer(graph, group, weights, x, kv, vectors, jnp.int32(index))
            if load is not None and sizes is not None:
                row = self.repeats.ordinal(self.config.expert_layers, number, repeat)
                load = load.at[row, : len(sizes)].add(sizes.astype(load.dtype))
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

    def _rotations(self, positions: jax.Array) -> dict[tuple[RopeConfig, int] | None, Rotation | None]:
        """Compute the rotation for each kind of mixer, once for those that rotate alike."""
        kinds = dict.fromkeys(layer.mixer.rotary for layer in self.config.layers)
        return {kind: None if kind is None else rotation(*kind, positions) for kind in kinds}

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
    found = scores(_head(config, head, backend, shards), hidden)
    if config.logits_scale != 1:
        found = found * config.logits_scale
    if config.logits_soft_cap is not None:
        found = config.logits_soft_cap * jnp.tanh(found / config.logits_soft_cap)
    return found


def _head(config: DecoderConfig, head: tuple[jax.Array, ...], backend: str, shards: Shards | None) -> Linear:
    """The projection that gives logits."""
    scheme, bias = config.head_scheme, head[-1] if config.head_bias else None
    if scheme is None:
        return Linear(alone(head[0]) if backend == "native" else head[0], bias)
    parts = dict(zip(scheme.parts, head, strict=False))
    return Linear(QuantizedArray(scheme, **parts, backend=backend, shards=shards), bias)
