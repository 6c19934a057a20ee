"""Topology: which chips a mesh is made for, how many devices JAX has of them, and how many hosts they are on."""

import math
from collections.abc import Collection
from typing import NamedTuple

from jaxinfer.errors import ParameterError, quoted

Shape = tuple[int, ...]

_MOST_CHIPS = 9216
"""Chips of the largest pod, v7x."""
_FLAT = {(1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)}
_FLAT_HOST = {(1, 1), (2, 2), (2, 4)}


class Target(NamedTuple):
    """A kind of chip. form: of its topologies, for errors. shapes: all that there are, none: any of this many
    dimensions. one_host: shapes that lie on one host; larger ones have `host_chips` chips a host. With host_chips 0 the
    last dimension is a host's chips, `most_chips` at most, and the others count hosts. kinds: JAX's names of the
    devices; of GPUs how they begin."""

    platform: str
    kinds: tuple[str, ...]
    form: str
    dimensions: int
    chip_devices: int = 1
    shapes: Collection[Shape] = ()
    one_host: Collection[Shape] = ()
    host_chips: int = 0
    most_chips: int = _MOST_CHIPS


_HOSTS = "(slices, hosts of a slice, GPUs of a host)"

# Sources: docs.cloud.google.com/tpu/docs/v5e, v5p, v6e and tpu7x (shapes, TensorCores a chip, chips a VM: an 8-chip VM
# holds 2x4, slices of several hosts are made of 4-chip VMs), JAX's names from pallas/mosaic/tpu_info.py. A v7x chip is
# two devices of JAX. NVIDIA HGX: 8 GPUs a baseboard.
TARGETS = {
    "v5e": Target("tpu", ("TPU v5 lite", "TPU v5e"), "v5e:2x4", 2, 1, _FLAT, _FLAT_HOST, 4),
    "v6e": Target("tpu", ("TPU v6 lite", "TPU v6e"), "v6e:2x4", 2, 1, _FLAT, _FLAT_HOST, 4),
    "v5p": Target("tpu", ("TPU v5p", "TPU v5"), "v5p:2x2x1", 3, 1, (), {(2, 2, 1)}, 4),
    "v7x": Target("tpu", ("TPU7x",), "v7x:2x2x1", 3, 2, (), {(2, 2, 1)}, 4),
    "a100": Target("gpu", ("NVIDIA A100",), f"a100:1x1x8 {_HOSTS}", 3, most_chips=8),
    "h100": Target("gpu", ("NVIDIA H100",), f"h100:1x1x8 {_HOSTS}", 3, most_chips=8),
    "h200": Target("gpu", ("NVIDIA H200",), f"h200:1x1x8 {_HOSTS}", 3, most_chips=8),
    "b200": Target("gpu", ("NVIDIA B200",), f"b200:1x1x8 {_HOSTS}", 3, most_chips=8),
    "cpu": Target("cpu", ("",), "cpu:8", 1),
}


class Topology(NamedTuple):
    """target: a key of TARGETS. shape: chips along each dimension."""

    target: str
    shape: Shape

    @classmethod
    def parse(cls, text: object) -> "Topology":
        """`v6e:2x4`: a target and chips per dimension. Raises ParameterError."""
        name, _, sizes = text.partition(":") if isinstance(text, str) else ("", "", "")
        if name not in TARGETS:
            allowed = ", ".join(TARGETS)
            raise ParameterError("topology", f"{quoted(text)} must be TARGET:SIZES as v6e:2x4, with one of {allowed}")
        words = sizes.split("x")
        if not all(word.isascii() and word.isdigit() and len(word) < 6 and int(word) > 0 for word in words):
            raise ParameterError("topology", f"{quoted(text)} must be written as {TARGETS[name].form}")
        found = cls(name, tuple(map(int, words)))
        found._check(TARGETS[name])
        return found

    def _check(self, target: Target) -> None:
        if len(self.shape) != target.dimensions or (target.shapes and self.shape not in target.shapes):
            shapes = ", ".join("x".join(map(str, shape)) for shape in sorted(target.shapes)) or target.form
            raise ParameterError("topology", f"{self} is no topology of {self.target}; there are {shapes}")
        if self.chips > _MOST_CHIPS or self.shape[-1] > target.most_chips:
            raise ParameterError(
                "topology", f"{self} has too many chips: {min(target.most_chips, _MOST_CHIPS)} at most"
            )
        if target.host_chips and self.shape not in target.one_host and self.chips % target.host_chips:
            raise ParameterError("topology", f"{self} must have a multiple of {target.host_chips} chips")

    @property
    def chips(self) -> int:
        """Chips on all hosts."""
        return math.prod(self.shape)

    @property
    def devices(self) -> int:
        """Devices of JAX on all hosts."""
        return self.chips * TARGETS[self.target].chip_devices

    @property
    def hosts(self) -> int:
        """Machines that the chips are on."""
        target = TARGETS[self.target]
        if not target.host_chips:
            return math.prod(self.shape[:-1])
        return 1 if self.shape in target.one_host else self.chips // target.host_chips

    def __str__(self) -> str:
        return f"{self.target}:{'x'.join(map(str, self.shape))}"
