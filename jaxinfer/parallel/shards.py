"""Shards: how the devices of a mesh share an array. Imports jax when a spec is made."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from jaxinfer.parallel.rules import ShardingRules, Split

if TYPE_CHECKING:
    from jax.sharding import Mesh, PartitionSpec


class Shards(NamedTuple):
    """axes: the mesh axes that each axis of an array is split over; none of one device alone."""

    mesh: "Mesh"
    axes: tuple[Split, ...]

    @classmethod
    def of(cls, mesh: "Mesh", rules: ShardingRules, axes: Sequence[str | None]) -> "Shards":
        """Return the shards of an array by the rules of its logical axes."""
        return cls(mesh, tuple(live_axes(mesh, rules.split(axis)) for axis in axes))


def live_axes(mesh: "Mesh", split: Split | None) -> Split:
    """Return the mesh axes in `split` along which there are several devices."""
    return tuple(name for name in split or () if mesh.shape[name] > 1)


def spec(*axes: Split | None) -> "PartitionSpec":
    """The PartitionSpec of an array whose axes are split so."""
    from jax.sharding import PartitionSpec

    return PartitionSpec(*(axis or None for axis in axes))
