"""Work over the vocabulary, each device with the columns that it holds of the head and of the slots' counts."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.sampler.vocabulary import Vocabulary

WHOLE = PartitionSpec()
"""Of an argument or result that every device has all of."""


def vocabulary_axes(model: LoadedModel) -> tuple[str, ...]:
    """The mesh axes of several devices that the vocabulary is split over."""
    return tuple(axis for axis in model.rules.vocab if model.mesh.shape[axis] > 1)


def columns(model: LoadedModel) -> PartitionSpec:
    """Of an array [n, vocabulary]."""
    return PartitionSpec(None, vocabulary_axes(model))


def over_vocabulary(
    model: LoadedModel, function: Callable[..., Any], arguments: tuple[PartitionSpec, ...], results: PartitionSpec
) -> Callable[..., Any]:
    """`function`, which takes a `Vocabulary` last, over the columns of each device."""
    axes = vocabulary_axes(model)
    if not axes:
        return function
    rows, size = model.config.table_shape[0], model.config.vocab_size
    here = partial(function, vocabulary=Vocabulary(axes, size if size < rows else None))
    return jax.shard_map(here, mesh=model.mesh, in_specs=arguments, out_specs=results, check_vma=False)


def slot_shardings(model: LoadedModel, slots: Any) -> Any:
    """Where each array of `zero_slots` lies: the counts by columns, all others on every device."""
    whole = NamedSharding(model.mesh, WHOLE)
    state, params, tables = jax.tree.map(lambda _: whole, slots)
    return state._replace(counts=NamedSharding(model.mesh, columns(model))), params, tables
