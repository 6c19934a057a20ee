"""MeshConfig: how many devices along which axes, and what is split over them. Imports no jax."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from jaxinfer.errors import ParameterError, quoted
from jaxinfer.parallel.rules import AXES, DEFAULT_RULES, ShardingRules
from jaxinfer.parallel.topology import Topology

_MOST = 65536
"""Devices along an axis, more than any pod has."""


class MeshParts(NamedTuple):
    """Numbers of parts of heads, vocabulary and experts, and copies of experts; arguments of `DecoderConfig.over`."""

    heads: int
    vocabulary: int
    experts: int
    redundant: int


@dataclass(frozen=True)
class MeshConfig:
    """axes: devices of JAX along each axis of AXES; 1 along those that are not named. topology: the chips that it is
    made for, None: any. redundant_experts: copies of experts in each layer that has some, beside them. Raises
    ParameterError for an unknown axis, a wrong size, and for another number of devices than
    the topology has."""

    axes: Mapping[str, int] = field(default_factory=dict)
    rules: ShardingRules = DEFAULT_RULES
    topology: Topology | None = None
    redundant_experts: int = 0

    def __post_init__(self) -> None:
        for name, size in self.axes.items():
            if name not in AXES:
                raise ParameterError("axes", f"{quoted(name)} is no axis; there are {', '.join(AXES)}")
            if type(size) is not int or not 1 <= size <= _MOST:
                raise ParameterError(f"axes.{name}", f"{quoted(size)} must be a whole number from 1 to {_MOST:,}")
        if self.topology is not None and self.size != self.topology.devices:
            raise ParameterError("axes", f"{self} has {self.size} devices, {self.topology} {self.topology.devices}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Devices along each axis, in the order of AXES."""
        return tuple(self.axes.get(name, 1) for name in AXES)

    @property
    def size(self) -> int:
        """Devices in all."""
        return math.prod(self.shape)

    def shards(self, axis: str) -> int:
        """Parts that a logical axis is split into."""
        return math.prod(self.axes.get(name, 1) for name in self.rules.split(axis) or ())

    @property
    def parts(self) -> MeshParts:
        """Numbers of parts that a decoder must know."""
        return MeshParts(self.shards("kv_heads"), self.shards("vocab"), self.shards("expert"), self.redundant_experts)

    @property
    def data(self) -> int:
        """Groups of devices that attend for different requests."""
        return self.axes.get("data", 1)

    @property
    def stages(self) -> int:
        """Groups of devices that have some of the layers each."""
        return self.axes.get("stage", 1)

    @property
    def of_stage(self) -> "MeshConfig":
        """The devices of one stage."""
        return self if self.stages == 1 else replace(self, axes={**self.axes, "stage": 1}, topology=None)

    @property
    def hosts(self) -> int:
        """Machines that the devices are on; 1 where no topology says."""
        return 1 if self.topology is None else self.topology.hosts

    def __str__(self) -> str:
        """`data=2, tensor=4`; `one device`."""
        sizes = zip(AXES, self.shape, strict=True)
        return ", ".join(f"{name}={size}" for name, size in sizes if size > 1) or "one device"


ONE_DEVICE = MeshConfig()
