"""LoadedModel: a decoder's weights on their devices, as flat leaves, and how a Decoder is built of them inside jit."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jaxinfer_kernels import KVLayout
from jaxinfer_kernels.layouts import platform_layout

from jaxinfer.checkpoint.safetensors import Checkpoint
from jaxinfer.checkpoint.sources import Source, read_weight
from jaxinfer.layers.stack import Layout
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.models import decoder
from jaxinfer.models.decoder import Decoder, Head
from jaxinfer.models.huggingface import ignored_tensors, weight_sources
from jaxinfer.models.tied_head import with_own_head
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.rules import DEFAULT_RULES, ShardingRules

Progress = Callable[[int, int], None]
"""progress(bytes done, bytes in all)."""


class Weight(NamedTuple):
    """What is known of a leaf before it has values. layers: those it holds, None for a weight outside of layers."""

    path: tuple[str | int, ...]
    shape: tuple[int, ...]
    dtype: jnp.dtype
    axes: tuple[str | None, ...]
    std: float | None
    layers: tuple[int, ...] | None

    @property
    def stacked(self) -> bool:
        """True where the first axis is over layers."""
        return self.axes[0] == "layers"


@dataclass(frozen=True)
class ModelPlan:
    """A model's structure without values: leaves in the order of LoadedModel.weights, then of its own head."""

    config: DecoderConfig
    graph: nnx.GraphDef
    tree: Any
    weights: tuple[Weight, ...]
    head: tuple[Weight, ...]


@dataclass(frozen=True)
class LoadedModel:
    """A model on its devices.

    weights: the decoder's leaves, flat, to be passed to jit as they are. head: the leaves that `logits` needs: the
    embedding where it is tied (the same array), else a leaf of its own that is not among `weights`. kv_layout: how its
    KV blocks lie, by default as its platform's attention backends share them.
    """

    config: DecoderConfig
    dtype: jnp.dtype
    mesh: Mesh
    rules: ShardingRules
    graph: nnx.GraphDef
    tree: Any
    weights: tuple[jax.Array, ...]
    head: tuple[jax.Array, ...]
    kv_layout: KVLayout = KVLayout.TOKENS

    def build(self, weights: tuple[jax.Array, ...]) -> Decoder:
        """The decoder over `weights`; meant for use inside jit, where it costs nothing at run time."""
        return nnx.merge(self.graph, jax.tree.unflatten(self.tree, weights))

    def logits(self, head: tuple[jax.Array, ...], hidden: jax.Array) -> jax.Array:
        """Normed hidden [S, d] to float32 [S, vocab]."""
        return decoder.logits(head, hidden)

    def kv_shape(self, group: int, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Shape of the KV blocks of a group in `kv_layout`."""
        return self.kv_layout.shape(
            layers=len(self.config.kv_groups[group].layers),
            pages=num_blocks,
            page_size=block_size,
            kv_heads=self.config.num_kv_heads,
            key_dim=self.config.head_dim,
            value_dim=self.config.head_dim,
        )

    def kv_sharding(self, group: int, num_blocks: int, block_size: int) -> NamedSharding:
        """How those blocks lie over the mesh: split over KV heads."""
        return self.rules.sharding(self.mesh, self.kv_layout.axes, self.kv_shape(group, num_blocks, block_size))


def plan_model(config: DecoderConfig, dtype: jnp.dtype, layout: Layout = "unrolled") -> ModelPlan:
    """The structure of a model of `config`; allocates nothing."""
    model = Decoder(config, dtype, layout)
    graph, state = nnx.split(model)
    tree = jax.tree.structure(state)
    weights = _describe(state, config, len(model.blocks))
    head = () if config.tie_word_embeddings else _describe(nnx.state(Head(config, dtype)), config, 0)
    return ModelPlan(config, graph, tree, weights, head)


def load_model(
    folder: Path,
    config: DecoderConfig,
    *,
    dtype: jnp.dtype,
    mesh: Mesh | None = None,
    rules: ShardingRules = DEFAULT_RULES,
    layout: Layout = "unrolled",
    progress: Progress | None = None,
) -> LoadedModel:
    """Reads a Hugging Face folder, each weight straight to its shards and cast to `dtype` on the way.

    mesh: by default one device. The model's config differs from `config` where the checkpoint holds a head that is not
    the embedding (`with_own_head`). Raises ModelError that names tensor and file for one that is missing, extra, of a
    wrong shape or truncated.
    """
    mesh = mesh or make_mesh()
    with Checkpoint(folder) as checkpoint:
        config = with_own_head(config, checkpoint, jnp.dtype(dtype))
        plan = plan_model(config, jnp.dtype(dtype), layout)
        every = (*plan.weights, *plan.head)
        sources = [weight_sources(config, weight.path, weight.layers) for weight in every]
        shapes = {t.name: t.shape for several in sources for source in several for t in source.tensors}
        checkpoint.check(shapes, ignored_tensors(config))
        total, done, arrays = checkpoint.size(shapes), 0, []
        for weight, several in zip(every, sources, strict=True):
            arrays.append(_load(weight, several, checkpoint, rules.sharding(mesh, weight.axes, weight.shape)))
            done += checkpoint.size(t.name for source in several for t in source.tensors)
            if progress is not None:
                progress(done, total)
    return _assemble(plan, arrays, jnp.dtype(dtype), mesh, rules)


def random_model(
    config: DecoderConfig,
    *,
    dtype: jnp.dtype,
    mesh: Mesh | None = None,
    rules: ShardingRules = DEFAULT_RULES,
    seed: int = 0,
    layout: Layout = "unrolled",
) -> LoadedModel:
    """A model with random weights; its logits have a standard deviation of about 3. For tests and benchmarks.

    The same seed gives the same model in both layouts.
    """
    plan, mesh = plan_model(config, jnp.dtype(dtype), layout), mesh or make_mesh()
    arrays = [
        _random(weight, seed, rules.sharding(mesh, weight.axes, weight.shape)) for weight in (*plan.weights, *plan.head)
    ]
    return _assemble(plan, arrays, jnp.dtype(dtype), mesh, rules)


def _describe(state: nnx.State, config: DecoderConfig, blocks: int) -> tuple[Weight, ...]:
    described = []
    for path, parameter in nnx.to_flat_state(state):
        held = parameter.get_value()
        layers = None
        if path[0] == "vectors":
            layers = tuple(range(config.num_layers))
        elif path[0] == "blocks":
            layers = tuple(range(int(str(path[1])), config.num_layers, blocks))
        metadata = parameter.get_metadata()
        names = tuple(part if isinstance(part, int) else str(part) for part in path)
        described.append(Weight(names, held.shape, held.dtype, metadata["axes"], metadata["std"], layers))
    return tuple(described)


def _assemble(
    plan: ModelPlan, arrays: list[jax.Array], dtype: jnp.dtype, mesh: Mesh, rules: ShardingRules
) -> LoadedModel:
    count = len(plan.weights)
    weights = tuple(arrays[:count])
    embed = next(i for i, weight in enumerate(plan.weights) if weight.path == ("embed",))
    head = tuple(arrays[count:]) or (weights[embed],)
    kv_layout = platform_layout(mesh.devices.flat[0].platform)
    return LoadedModel(plan.config, dtype, mesh, rules, plan.graph, plan.tree, weights, head, kv_layout)


def _load(weight: Weight, sources: list[Source], checkpoint: Checkpoint, sharding: NamedSharding) -> jax.Array:
    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        whole = index if index is not None else (slice(None),) * len(weight.shape)
        return read_weight(sources, weight.stacked, whole, checkpoint.read).astype(weight.dtype)

    return jax.make_array_from_callback(weight.shape, sharding, part)


def _random(weight: Weight, seed: int, sharding: NamedSharding) -> jax.Array:
    """Values keyed by what a weight is and its layer, so that they do not depend on the layout."""
    kind = zlib.crc32(str(weight.path[-1]).encode())
    layers = weight.layers or (0,)
    keys = np.array([[kind, seed, layer] for layer in layers], np.uint32)
    draw = jax.jit(_values, static_argnums=(1, 2, 3, 4), out_shardings=sharding)
    return draw(keys, weight.shape, weight.dtype, weight.std, weight.stacked)


def _values(keys: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype, std: float | None, stacked: bool) -> jax.Array:
    if std is None:
        return jnp.ones(shape, dtype)

    def one(words: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(words[1]), words[0]), words[2])
        return (jax.random.normal(key, shape[1:] if stacked else shape, jnp.float32) * std).astype(dtype)

    return jax.lax.map(one, keys) if stacked else one(keys[0])
