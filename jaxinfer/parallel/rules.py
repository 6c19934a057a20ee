"""Which mesh axis each logical axis of a weight or an activation is split over."""

from collections.abc import Sequence
from dataclasses import dataclass

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxinfer.errors import ParameterError


@dataclass(frozen=True)
class ShardingRules:
    """Logical axis to mesh axis (`stage`, `expert`, `tensor`); None: every device holds all of it."""

    layers: str | None = None
    vocab: str | None = "tensor"
    embed: str | None = None
    kv_heads: str | None = "tensor"
    q_per_kv: str | None = None
    head_dim: str | None = None
    mlp: str | None = "tensor"
    expert: str | None = "expert"

    def sharding(self, mesh: Mesh, axes: Sequence[str | None], shape: Sequence[int]) -> NamedSharding:
        """The sharding of an array with these logical axes.

        Raises ParameterError where a length is not a multiple of the devices along its mesh axis.
        """
        names = tuple(None if axis is None else getattr(self, axis) for axis in axes)
        for axis, name, length in zip(axes, names, shape, strict=True):
            if name is not None and length % mesh.shape[name]:
                raise ParameterError("mesh", f"{axis}, {length}, cannot be split over {name}={mesh.shape[name]}")
        return NamedSharding(mesh, PartitionSpec(*names))


DEFAULT_RULES = ShardingRules()
