"""Attention data parallelism: each shard, a group of devices along the axis `data`, computes rows of its own.

A program over several shards is that of one shard under shard_map over `data` alone: it sees its shard's slots, blocks
and section of the packed step, and XLA splits the rest of it over the other axes. What all shards need to know of each
other is exchanged here.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.step.draft_model import draft_shapes
from jaxinfer.runner.step.features import FEATURE_ARRAYS, feature_arrays

_AXIS = "data"
WHOLE = PartitionSpec()
"""Spec of arrays that are replicated over shards."""


def num_shards(mesh: Mesh) -> int:
    """Groups of devices that attend for different requests."""
    return mesh.shape[_AXIS]


def rows(mesh: Mesh) -> PartitionSpec:
    """Return the spec of arrays whose first axis is over slots, rows, or sections of a packed step."""
    return PartitionSpec(_AXIS) if num_shards(mesh) > 1 else WHOLE


def kv_specs(model: LoadedModel) -> tuple[PartitionSpec, ...]:
    """Return the specs of each group's KV blocks, after them of each of a draft model's, and of features: every shard
    has its own."""
    backends = [backend for one in model.drafting for backend in one.backends]
    features = (rows(model.mesh),) * (FEATURE_ARRAYS if model.taps else 0)
    if num_shards(model.mesh) == 1:
        return (WHOLE,) * len(backends) + features
    return (*(PartitionSpec(*[None] * backend.layout.page_axis, _AXIS) for backend in backends), *features)


def kv_arrays(model: LoadedModel, shapes: EngineShapes) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The KV blocks of all shards: shape, dtype and sharding of each group's, after them of each of a draft model's,
    and of features."""
    own = tuple(_kv_array(model, shapes, index) for index in range(len(shapes.groups)))
    if model.draft is None:
        return own
    place = NamedSharding(model.mesh, rows(model.mesh))
    features = (jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place) for x in feature_arrays(model, shapes))
    return (*own, *kv_arrays(model.draft, draft_shapes(model, shapes)), *features)


def _kv_array(model: LoadedModel, shapes: EngineShapes, index: int) -> jax.ShapeDtypeStruct:
    blocks, size = shapes.groups[index].num_blocks, shapes.block_size
    shape = model.kv_shape(index, blocks * shapes.shards, size)
    spec = list(model.kv_sharding(index, blocks, size).spec)
    if shapes.shards > 1:
        spec[model.backends[index].layout.page_axis] = _AXIS
    sharding = NamedSharding(model.mesh, PartitionSpec(*spec))
    return jax.ShapeDtypeStruct(shape, model.kv_dtype(index), sharding=sharding)


def over_data(
    mesh: Mesh, function: Callable[..., Any], in_specs: tuple[Any, ...], out_specs: Any
) -> Callable[..., Any]:
    """`function` over each shard's part of its arguments."""
    if num_shards(mesh) == 1:
        return function
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names={_AXIS}, check_vma=False
    )


def any_shard(mesh: Mesh, here: jax.Array) -> jax.Array:
    """Return whether `here`, a bool, is true in any shard."""
    return most_of_shards(mesh, here.astype(jnp.int32)) > 0


def most_of_shards(mesh: Mesh, here: jax.Array) -> jax.Array:
    """The largest of what each shard has, a number."""
    return here if num_shards(mesh) == 1 else jax.lax.pmax(here, _AXIS)


def added_up(mesh: Mesh, before: jax.Array | None, after: jax.Array | None) -> jax.Array | None:
    """`before` and what every shard has added to it."""
    if before is None or after is None or num_shards(mesh) == 1:
        return after
    return before + jax.lax.psum(after - before, _AXIS)
