"""Rules to split logical axes of weights and KV blocks over mesh axes. Imports jax when a sharding is created."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jaxinfer.errors import ParameterError

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh, NamedSharding

AXES = ("data", "stage", "expert", "tensor")
"""The axes of every mesh, slowest first: devices that are neighbours in `tensor` are neighbours on a host."""

Split = tuple[str, ...]
"""Mesh axes that one logical axis is split over, the first slowest; none: every device holds all of it."""

ARRAYS = (
    ("layers", "kv_heads", "q_per_kv", "head_dim", "embed"),
    ("layers", "mlp", "embed"),
    ("layers", "expert", "expert_mlp", "embed"),
    ("vocab", "embed"),
)
"""Logical axes that occur in one array: of attention and KV blocks, of MLPs, of experts, of embedding and head."""


@dataclass(frozen=True)
class ShardingRules:
    """Logical axis to mesh axes. Raises ParameterError where two axes of one array would share a mesh axis."""

    layers: Split = ()
    vocab: Split = ("tensor",)
    embed: Split = ()
    kv_heads: Split = ("tensor",)
    q_per_kv: Split = ()
    head_dim: Split = ()
    mlp: Split = ("tensor",)
    expert: Split = ("expert",)
    expert_mlp: Split = ("tensor",)

    def __post_init__(self) -> None:
        for axes in ARRAYS:
            self._check_distinct(axes)

    def with_whole_experts(self) -> "ShardingRules":
        """Return the rules with whole experts, and all their channels, on each device along `expert` and `tensor`."""
        return replace(self, expert=("expert", "tensor"), expert_mlp=())

    def split(self, axis: str | None) -> Split | None:
        """The mesh axes of a logical axis, as PartitionSpec takes them."""
        return None if axis is None else getattr(self, axis) or None

    def sharding(
        self, mesh: "Mesh | AbstractMesh", axes: Sequence[str | None], shape: Sequence[int]
    ) -> "NamedSharding":
        """The sharding of an array with these logical axes.

        Raises ParameterError where a length is not a multiple of the devices along its mesh axes, or where two logical
        axes share a mesh axis.
        """
        from jax.sharding import NamedSharding, PartitionSpec

        self._check_distinct(axes)
        splits = [self.split(axis) for axis in axes]
        for axis, split, length in zip(axes, splits, shape, strict=True):
            if length % math.prod(mesh.shape[name] for name in split or ()):
                sizes = ", ".join(f"{name}={mesh.shape[name]}" for name in split or ())
                raise ParameterError("mesh", f"{axis}, {length}, cannot be split over {sizes}")
        return NamedSharding(mesh, PartitionSpec(*splits))

    def _check_distinct(self, axes: Sequence[str | None]) -> None:
        owners: dict[str, str] = {}
        for axis in filter(None, axes):
            for name in self.split(axis) or ():
                if name in owners:
                    both, array = f"{owners[name]} and {axis}", ", ".join(map(str, axes))
                    message = f"rules: {both} are axes of one array ({array}); one of them can be split over {name}"
                    raise ParameterError("mesh", message)
                owners[name] = axis


DEFAULT_RULES = ShardingRules()
