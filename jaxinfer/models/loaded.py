"""LoadedModel: a decoder's weights on their devices, as flat leaves, and how a Decoder is built of them inside jit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jaxinfer_kernels import KVLayout
from jaxinfer_kernels.layouts import platform_layout

from jaxinfer.layers.dispatch import Dispatch, DispatchForm, ExpertShards
from jaxinfer.layers.param import QuantizedParam, matrix_shape
from jaxinfer.layers.stack import Layout
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.models import decoder, weight
from jaxinfer.models.decoder import Decoder
from jaxinfer.models.opened import Progress, open_model
from jaxinfer.models.plan import ModelPlan, plan_model
from jaxinfer.models.weight import Weight, held_on
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.rules import DEFAULT_RULES, ShardingRules
from jaxinfer.parallel.shards import Shards, live_axes
from jaxinfer.quantization.array import MatrixShape
from jaxinfer.quantization.scheme import Scheme


class GroupBackend(NamedTuple):
    """Attention backend of the layers of a KV group: a backend of the kernels, and the layout of the group's KV
    blocks."""

    name: str
    layout: KVLayout


@dataclass(frozen=True)
class LoadedModel:
    """A model on its devices.

    weights: the decoder's leaves, flat, to be passed to jit as they are. head: the leaves that `logits` needs: the
    embedding where it is tied (the same array), else leaves of its own that are not among `weights`; none of a stage of
    a pipeline that is not the last. backends: what attends in each KV group; until they are chosen `xla`, over the
    layout of the platform. experts_backend: what multiplies in layers with experts, of `grouped_matmul`. dispatch_form:
    how a step's rows come to experts on other devices. product_backends: what multiplies quantised matrices, of
    `quantized_matmul`, by the shape of one device's part; those that are not named, `xla`. plain_backend: what
    multiplies the others, `xla` or `native`. layout: of its layers, as
    `Decoder` has it. draft: a smaller model that drafts this one's next tokens, on the same devices.
    """

    config: DecoderConfig
    dtype: jnp.dtype
    mesh: Mesh
    rules: ShardingRules
    graph: nnx.GraphDef
    tree: Any
    weights: tuple[jax.Array, ...]
    head: tuple[jax.Array, ...]
    backends: tuple[GroupBackend, ...]
    experts_backend: str = "xla"
    dispatch_form: DispatchForm = "reduce"
    product_backends: tuple[tuple[MatrixShape, str], ...] = ()
    plain_backend: str = "xla"
    layout: Layout = "unrolled"
    draft: "LoadedModel | None" = None

    @property
    def drafting(self) -> "tuple[LoadedModel, ...]":
        """This model, and the one that drafts for it where there is one."""
        return (self,) if self.draft is None else (self, self.draft)

    @cached_property
    def weights_with_draft(self) -> tuple[jax.Array, ...]:
        """`weights`, and after them the draft model's."""
        return tuple(leaf for one in self.drafting for leaf in one.weights)

    @property
    def structure(self) -> object:
        """All that its programs follow from, beside how it lies on its devices."""
        return self.config

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Layers of another model whose inputs this model reads to draft for it."""
        return ()

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers of this model whose inputs what drafts for it reads."""
        return () if self.draft is None else self.draft.feature_layers

    @property
    def step_weights(self) -> tuple[jax.Array, ...]:
        """The leaves that every forward pass reads: with the draft's where that reads this model's hidden states."""
        return self.weights_with_draft if self.taps else self.weights

    @cached_property
    def head_with_draft(self) -> tuple[jax.Array, ...]:
        """`head`, and after it the draft model's."""
        return tuple(leaf for one in self.drafting for leaf in one.head)

    @property
    def plan(self) -> ModelPlan:
        """Its structure: what each leaf is."""
        return plan_model(self.config, self.dtype, self.layout)

    def build(self, weights: tuple[jax.Array, ...]) -> Decoder:
        """The decoder over `weights`; meant for use inside jit, where it costs nothing at run time."""
        return self.merged(weights)

    def merged(self, weights: tuple[jax.Array, ...]) -> Any:
        """The module whose leaves `weights` are."""
        built = nnx.merge(self.graph, jax.tree.unflatten(self.tree, weights))
        for _, part in nnx.iter_graph(built) if self._is_told else ():
            if isinstance(part, QuantizedParam):
                part.backend = self._backend_of(self.device_matrix(part.shape, part.axes, part.scheme))
                part.shards = self._shards([axis for axis in part.axes if axis != "layers"])
            elif isinstance(part, nnx.Param) and _is_multiplied(part):
                part.set_metadata(backend=self.plain_backend, parted=self._is_parted(part.get_metadata()["axes"][-1]))
        return built

    @property
    def _is_told(self) -> bool:
        """True where modules differ from those of the plan: in backends, or because they are split over devices."""
        return bool(self.product_backends) or self.plain_backend != "xla" or self.mesh.size > 1

    def _is_parted(self, axis: str | None) -> bool:
        """Return whether devices share this axis of a layer's second matrices."""
        return axis in ("kv_heads", "mlp") and bool(live_axes(self.mesh, self.rules.split(axis)))

    def _shards(self, axes: Sequence[str | None]) -> Shards | None:
        return Shards.of(self.mesh, self.rules, axes) if self.mesh.size > 1 else None

    def dispatch(self, real: jax.Array | None = None) -> Dispatch:
        """Return how a step's rows are dispatched to experts. real: as in `Dispatch`."""
        shards = self._shards(("expert", "expert_mlp", "embed"))
        if shards is None:
            return Dispatch(self.experts_backend, real)
        ragged = self.mesh.devices.flat[0].platform != "cpu"  # XLA on CPU has no ragged-all-to-all
        expert, channels, embed = shards.axes
        place = ExpertShards(shards.mesh, expert, channels, embed, self.dispatch_form, ragged)
        return Dispatch(self.experts_backend, real, place)

    @property
    def expert_devices(self) -> int:
        """Over how many devices experts are split."""
        return math.prod(self.mesh.shape[name] for name in self.rules.split("expert") or ())

    def device_matrix(self, shape: Sequence[int], axes: Sequence[str | None], scheme: Scheme) -> MatrixShape:
        """Return the shape of one device's part of each matrix of a quantised weight."""
        part = self.rules.sharding(self.mesh, axes, shape).shard_shape(tuple(shape))
        return matrix_shape(part, axes, scheme)

    def _backend_of(self, matrix: MatrixShape) -> str:
        return dict(self.product_backends).get(matrix, "xla")

    @property
    def head_matrix(self) -> MatrixShape | None:
        """The shape of the matrix that `logits` multiplies with, one device's part, where it is quantised."""
        config = self.config
        return config.head_scheme and self.device_matrix(config.table_shape, ("vocab", "embed"), config.head_scheme)

    def logits(self, head: tuple[jax.Array, ...], hidden: jax.Array) -> jax.Array:
        """Normed hidden [S, d] to float32 [S, vocab]."""
        matrix = self.head_matrix
        backend = self.plain_backend if matrix is None else self._backend_of(matrix)
        return decoder.logits(self.config, head, hidden, backend, self._shards(("vocab", "embed")))

    def kv_type(self, group: int) -> jnp.dtype:
        """The type that keys and values of a group are kept in."""
        codes = self.config.kv_groups[group].kv.codes
        return self.dtype if codes is None else jnp.dtype(codes)

    def kv_dtype(self, group: int) -> jnp.dtype:
        """The type of the array of a group's KV blocks: that of keys and values, or on a CPU, where XLA widens whole
        arrays of short floats, of unsigned integers that hold their bits."""
        kept = self.kv_type(group)
        on_cpu = self.mesh.devices.flat[0].platform == "cpu" and self.backends[group].name != "mosaic_tpu"
        short = jnp.issubdtype(kept, jnp.floating) and kept.itemsize < 4
        return jnp.dtype(f"uint{8 * kept.itemsize}") if on_cpu and short else kept

    def kv_shape(self, group: int, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """Shape of the KV blocks of a group in its layout."""
        kind, layers = self.config.kv_groups[group]
        return self.backends[group].layout.shape(
            layers=len(layers),
            pages=num_blocks,
            page_size=block_size,
            kv_heads=kind.heads,
            key_dim=kind.key_dim,
            value_dim=kind.value_dim,
        )

    def kv_sharding(self, group: int, num_blocks: int, block_size: int) -> NamedSharding:
        """Return the sharding of a group's KV blocks over the mesh: split over KV heads."""
        shape = self.kv_shape(group, num_blocks, block_size)
        return self.rules.sharding(self.mesh, self.backends[group].layout.axes, shape)


def _is_multiplied(parameter: nnx.Param) -> bool:
    """Return whether a parameter is a matrix to multiply with, rather than a table whose rows are read."""
    of = parameter.get_metadata()
    return "backend" in of and "vocab" not in of["axes"]


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
    """Reads a Hugging Face folder, each weight straight to its shards and cast to `dtype` on the way; or a folder of
    leaves of this dtype.

    mesh: by default one device. The model's config differs from `config` where the checkpoint holds a head that is not
    the embedding (`with_own_head`), or columns in no one order (`with_one_order`). Raises ModelError that names tensor
    and file for one that is missing, extra, of a wrong shape or truncated, and for leaves of another model.
    """
    mesh, dtype = mesh or make_mesh(), jnp.dtype(dtype)
    with open_model(folder, config, dtype, layout) as opened:
        arrays = list(opened.load(rules, mesh, progress))
    return _assemble(opened.plan, arrays, dtype, mesh, rules, layout)


def load_stages(
    folder: Path,
    config: DecoderConfig,
    spans: Sequence[tuple[int, int]],
    *,
    dtype: jnp.dtype,
    meshes: Sequence[Mesh],
    rules: ShardingRules = DEFAULT_RULES,
    layout: Layout = "unrolled",
    progress: Progress | None = None,
) -> tuple[LoadedModel, ...]:
    """Load the stages of a pipeline as `load_model` does a model: each on its mesh, with the layers from a first one to
    before a last one."""
    dtype = jnp.dtype(dtype)
    with open_model(folder, config, dtype, layout) as opened:
        plans = [plan_model(opened.config.stage(*span), dtype, layout) for span in spans]
        parts = [opened.part(plan.numbered) for plan in plans]
        sizes = [part.bytes(mesh) for part, mesh in zip(parts, meshes, strict=True)]
        stages: list[LoadedModel] = []
        for number, (plan, part, mesh) in enumerate(zip(plans, parts, meshes, strict=True)):
            told = None if progress is None else partial(_told, progress, sum(sizes[:number]), sum(sizes))
            stages.append(_assemble(plan, list(part.load(rules, mesh, told)), dtype, mesh, rules, layout))
    return tuple(stages)


def _told(progress: Progress, before: int, total: int, done: int, _: int) -> None:
    """Tells of a part as of the whole."""
    progress(before + done, total)


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
    every = (*plan.numbered.weights, *plan.head)
    arrays = [leaf for one in every for leaf in weight.random(one, seed, rules, mesh)]
    return _assemble(plan, arrays, jnp.dtype(dtype), mesh, rules, layout)


def abstract_model(
    config: DecoderConfig,
    *,
    dtype: jnp.dtype,
    mesh: Mesh | None = None,
    rules: ShardingRules = DEFAULT_RULES,
    layout: Layout = "unrolled",
) -> LoadedModel:
    """A model whose weights are shapes with shardings: programs can be traced and compiled over it, not run."""
    plan, mesh = plan_model(config, jnp.dtype(dtype), layout), mesh or make_mesh()
    shapes: list[Any] = [
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        for one in (*plan.weights, *plan.head)
        for leaf, sharding in zip(one.leaves(held_on(mesh)), one.shardings(rules, mesh), strict=True)
    ]
    return _assemble(plan, shapes, jnp.dtype(dtype), mesh, rules, layout)


def _assemble(
    plan: ModelPlan, arrays: list[jax.Array], dtype: jnp.dtype, mesh: Mesh, rules: ShardingRules, layout: Layout
) -> LoadedModel:
    count = sum(map(_num_leaves, plan.weights))
    weights = tuple(arrays[:count])
    head = tuple(arrays[count:])
    if not head and plan.config.ends:
        head = _embedding(plan, weights)
    backend = GroupBackend("xla", platform_layout(mesh.devices.flat[0].platform))
    backends = (backend,) * len(plan.config.kv_groups)
    fixed = (plan.config, dtype, mesh, rules, plan.graph, plan.tree)
    return LoadedModel(*fixed, weights, head, backends, layout=layout)


def _embedding(plan: ModelPlan, weights: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    at = 0
    for one in plan.weights:
        if one.path == ("embed",):
            return weights[at : at + _num_leaves(one)]
        at += _num_leaves(one)
    raise AssertionError("every decoder has an embedding")


def _num_leaves(one: Weight) -> int:
    return 1 if one.scheme is None else len(one.scheme.parts)
