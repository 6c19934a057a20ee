"""The mesh: devices of JAX along the axes of a MeshConfig."""

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from jaxinfer.errors import ParameterError
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.parallel.rules import AXES
from jaxinfer.parallel.topology import TARGETS, Topology


def make_mesh(config: MeshConfig = ONE_DEVICE, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh over the first of `devices` (jax.Device), by default all of this process's platform.

    Raises ParameterError where there are fewer devices than the mesh asks for, or others than its topology names.
    """
    found = list(devices if devices is not None else jax.devices())
    if config.topology is not None:
        _check_target(config.topology, found[0])
    if config.size > len(found):
        raise ParameterError("mesh", f"{config} needs {config.size} devices; {_here(found)}")
    return Mesh(np.array(found[: config.size]).reshape(config.shape), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def shard_shape(mesh: MeshConfig, axes: Sequence[str | None], shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of one device's part of an array with these logical axes, on devices that need not be here. Raises
    ParameterError where it cannot be split so."""
    return mesh.rules.sharding(AbstractMesh(mesh.shape, AXES), axes, shape).shard_shape(tuple(shape))


def add_cpu_devices(count: int) -> None:
    """Lets JAX divide this machine's CPU into `count` devices. Without effect once JAX has devices, and on those of
    accelerators."""
    if count > 1:
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count)


def platform_kind(platform: str) -> str:
    """`cpu`, `gpu` or `tpu`, of what JAX calls a platform."""
    return "gpu" if platform in ("cuda", "rocm") else platform


def _check_target(topology: Topology, device: Any) -> None:
    target = TARGETS[topology.target]
    platform = platform_kind(device.platform)
    kind = device.device_kind
    known = kind in target.kinds if platform == "tpu" else kind.startswith(target.kinds)  # a v5e's begins as a v5p's
    if platform != target.platform or not known:
        raise ParameterError("mesh", f"is made for {topology}; this machine has {kind} ({platform})")


def _here(devices: Sequence[Any]) -> str:
    platform, count = devices[0].platform, len(devices)
    told = f"JAX has {count} of {platform} here"
    if platform != "cpu":
        return told
    return f"{told}, and makes no more once it has any: ask for the mesh before this process uses JAX"
