"""Ways to bring an array from one device to the next: `device_put`, or a collective over both."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

HIDDEN, TOKENS = (64, 1024), (64, 3)


def ways() -> dict[str, Callable[[], Any]]:
    """Return the ways to hand arrays over, by name. Each call's result is on the second device."""
    one, other = jax.devices()[:2]
    hidden = jax.device_put(np.ones(HIDDEN, np.float32), _alone(one))
    tokens = jax.device_put(np.ones(TOKENS, np.int32), _alone(one))
    return {
        "device_put, hidden 64 x 1024 f32": partial(jax.device_put, hidden, _alone(other)),
        "device_put, tokens 64 x 3 int32": partial(jax.device_put, tokens, _alone(other)),
        "device_put, both in one call": lambda: jax.device_put((hidden, tokens), _alone(other))[0],
        "device_put to the device, hidden": partial(jax.device_put, hidden, other),
        "ppermute, hidden": _collective(hidden, one, other),
        "ppermute, tokens": _collective(tokens, one, other),
    }


def _alone(device: Any) -> NamedSharding:
    return NamedSharding(Mesh(np.array([device]), ("tensor",)), PartitionSpec())


def _collective(array: jax.Array, one: Any, other: Any) -> Callable[[], Any]:
    """Joins the stage's array with one of the receiver's to an array over both, and permutes that."""
    mesh, place = Mesh(np.array([one, other]), ("stage",)), PartitionSpec("stage")
    shape, both = (2 * array.shape[0], *array.shape[1:]), NamedSharding(mesh, PartitionSpec("stage"))
    unused = jax.device_put(array, _alone(other))
    move = jax.shard_map(lambda x: lax.ppermute(x, "stage", [(0, 1)]), mesh=mesh, in_specs=place, out_specs=place)
    joined = partial(jax.make_array_from_single_device_arrays, shape, both)
    program = jax.jit(move).lower(joined([array, unused])).compile()
    return lambda: program(joined([array, unused])).addressable_data(1)
