"""The mesh: devices along the axes stage, expert and tensor."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxinfer.errors import ParameterError

AXES = ("stage", "expert", "tensor")


@dataclass(frozen=True)
class MeshSizes:
    """Devices along each axis."""

    stage: int = 1
    expert: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        for name in AXES:
            if getattr(self, name) < 1:
                raise ParameterError(name, f"{getattr(self, name)} must be at least 1")


def make_mesh(sizes: MeshSizes | None = None, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh over the first of `devices` (jax.Device), by default all of this process's platform.

    Raises ParameterError where there are fewer devices than the sizes ask for.
    """
    sizes = sizes or MeshSizes()
    shape = tuple(getattr(sizes, name) for name in AXES)
    found = list(devices if devices is not None else jax.devices())
    needed = int(np.prod(shape))
    if needed > len(found):
        raise ParameterError("mesh", f"{shape} over {AXES} needs {needed} devices; {len(found)} are there")
    return Mesh(np.array(found[:needed]).reshape(shape), AXES, axis_types=(AxisType.Auto,) * len(AXES))
