"""Work over the vocabulary, each device with the columns that it holds of the head and of the slots' counts."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxinfer.models.loaded import LoadedModel
from jaxinfer.parallel.per_device import per_device
from jaxinfer.parallel.shards import live_axes
from jaxinfer.runner.sampler.vocabulary import Vocabulary
from jaxinfer.runner.state import Slots
from jaxinfer.runner.step.data_shards import rows

WHOLE = PartitionSpec()
"""Spec of an argument or result that is replicated over devices."""


def vocabulary_axes(model: LoadedModel) -> tuple[str, ...]:
    """The mesh axes of several devices that the vocabulary is split over."""
    return live_axes(model.mesh, model.rules.vocab)


def columns(model: LoadedModel) -> PartitionSpec:
    """Return the spec of an array [n, vocabulary]."""
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
    return per_device(here, model.mesh, arguments, results)


def slot_shardings(model: LoadedModel, slots: Slots) -> Any:
    """Return the sharding of each array of `zero_slots`: slots on their shard, and the counts by columns too."""
    own = rows(model.mesh)
    placed = jax.tree.map(lambda _: NamedSharding(model.mesh, own), slots)
    by_slot = own[0] if own else None
    counts = PartitionSpec(by_slot, *columns(model)[1:])
    return placed._replace(state=placed.state._replace(counts=NamedSharding(model.mesh, counts)))
