"""Programs that make the arrays of an engine on its devices: KV blocks, and the state of slots that nobody has."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxinfer_kernels.cpu.untouched import untouched

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.state import Slots, zero_slots
from jaxinfer.runner.step.data_shards import kv_arrays
from jaxinfer.runner.step.vocabulary_shards import slot_shardings


def compiled_slots(
    model: LoadedModel, shapes: EngineShapes, part: Callable[[Slots], Any] = lambda slots: slots
) -> jax.stages.Compiled:
    """() gives `Slots`, or a part of it."""
    make = partial(zero_slots, shapes, model.config.table_shape[0])
    places = part(slot_shardings(model, jax.eval_shape(make)))
    return jax.jit(lambda: part(make()), out_shardings=places).lower().compile()


def compiled_kv(model: LoadedModel, shapes: EngineShapes) -> jax.stages.Compiled:
    """() gives the arrays of `kv_arrays`: zeros, where these lie. Native attention never reads a key that was not
    written, and its blocks are left as memory is found: 9 GiB of zeros take a CPU ten seconds at every start."""
    arrays, blocks = kv_arrays(model, shapes), len(shapes.groups)
    native = [number < blocks and model.backends[number].name == "native" for number in range(len(arrays))]

    def make() -> tuple[jax.Array, ...]:
        return tuple(
            (untouched if left else jnp.zeros)(array.shape, array.dtype)
            for array, left in zip(arrays, native, strict=True)
        )

    return jax.jit(make, out_shardings=tuple(array.sharding for array in arrays)).lower().compile()
