"""Arrays on devices of other hosts alone: this process knows their shape and place."""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from jaxinfer.models.loaded import LoadedModel


def has_devices_here(model: LoadedModel) -> bool:
    """Return whether some of a model's devices belong to this process."""
    own = jax.process_index()
    return any(device.process_index == own for device in model.mesh.devices.flat)


def absent(shape: Sequence[int], dtype: Any, sharding: NamedSharding) -> jax.Array:
    """An array none of whose devices are here."""
    return jax.make_array_from_single_device_arrays(tuple(shape), sharding, [], dtype=dtype)
