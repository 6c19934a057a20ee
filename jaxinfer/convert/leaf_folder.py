"""The parts of a folder of leaves, made from a model that is open."""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxinfer.checkpoint.leaves import FOLDER, KEY, part_of, save_part
from jaxinfer.convert.work_folder import WorkFolder, check_room
from jaxinfer.models import weight
from jaxinfer.models.held_weights import canonical
from jaxinfer.models.leaf_key import KV_SCALES, leaf_key, leaf_names
from jaxinfer.models.opened import OpenModel
from jaxinfer.models.weight import Leaf, Weight
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.rules import DEFAULT_RULES
from jaxinfer.quantization.array import in_bytes


def add_leaves(work: WorkFolder, opened: OpenModel, dtype: jnp.dtype, quantization: str, mesh: MeshConfig) -> None:
    """Adds all leaves and their key; one part of the model at a time is in memory.

    Computed on the CPU. mesh: whose shards chunks are cut for; it need not be here. Raises OSError.
    """
    cpu = jax.devices("cpu")
    here, chunks = make_mesh(devices=cpu), make_mesh(replace(mesh, topology=None), cpu)
    every = (*opened.plan.weights, *opened.plan.head)
    check_room(
        work, sum(leaf.dtype.itemsize * int(np.prod(leaf.shape)) for one in every for leaf in one.leaves("bytes"))
    )
    for part, group in itertools.groupby(every, lambda one: part_of(".".join(map(str, one.path)))):
        weights = list(group)

        def write(path: Path, weights: Sequence[Weight] = weights) -> None:
            leaves = dict(_placed(_leaves(opened, weights, here), chunks, mesh))
            _save(path, leaves)

        work.add(f"{FOLDER}/{part}", write)
    scales = opened.kv_scales()
    if scales is not None:
        work.add(f"{FOLDER}/{KV_SCALES}", lambda path: _save(path, {KV_SCALES: _kv_scales(opened, scales[1])}))
    own = replace(canonical(opened.config), held=quantization, held_kv_scales=None if scales is None else scales[0])
    key = json.dumps(leaf_key(own, dtype, quantization), indent=1)
    work.add(KEY, lambda path: _write_text(path, key))


def _leaves(opened: OpenModel, weights: Sequence[Weight], here: Mesh) -> Iterator[tuple[str, Leaf, jax.Array]]:
    for one in weights:
        arrays = weight.load(one, opened.sources(one), opened.reader, DEFAULT_RULES, here)
        yield from zip(leaf_names(one), one.leaves("bytes"), map(in_bytes, arrays), strict=True)


def _placed(
    leaves: Iterator[tuple[str, Leaf, jax.Array]], mesh: Mesh, config: MeshConfig
) -> Iterator[tuple[str, jax.Array]]:
    """Each split as the mesh splits it, along the axes that divide: orbax cuts chunks within shards."""
    for name, leaf, array in leaves:
        lengths = zip(leaf.axes, leaf.shape, strict=True)
        splits = [None if axis is None or length % config.shards(axis) else axis for axis, length in lengths]
        spec = PartitionSpec(*(config.rules.split(axis) for axis in splits))
        yield name, jax.device_put(array, NamedSharding(mesh, spec))


def _kv_scales(opened: OpenModel, scales: Sequence[Any]) -> jax.Array:
    return jnp.asarray(np.stack([opened.reader.read_source(one, (slice(None),)) for one in scales]), jnp.float32)


def _save(path: Path, leaves: dict[str, jax.Array]) -> None:
    """TensorStore's errors are OSErrors where the disk is to blame."""
    try:
        save_part(path, leaves)
    except ValueError as error:
        raise OSError(str(error)) from error


def _write_text(path: Path, text: str) -> None:
    path.write_text(text + "\n")
