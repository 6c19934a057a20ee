"""Programs that make the arrays of an engine on its devices: KV blocks, and the state of slots that nobody has."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.state import Slots, zero_slots
from jaxinfer.runner.vocabulary_shards import slot_shardings


def compiled_slots(
    model: LoadedModel, shapes: EngineShapes, part: Callable[[Slots], Any] = lambda slots: slots
) -> jax.stages.Compiled:
    """() gives `Slots`, or a part of it."""
    make = partial(zero_slots, shapes, model.config.table_shape[0])
    places = part(slot_shardings(model, jax.eval_shape(make)))
    return jax.jit(lambda: part(make()), out_shardings=places).lower().compile()


def compiled_zeros(arrays: Sequence[jax.ShapeDtypeStruct]) -> jax.stages.Compiled:
    """() gives arrays of zeros of these shapes, where these lie."""

    def make() -> tuple[jax.Array, ...]:
        return tuple(jnp.zeros(array.shape, array.dtype) for array in arrays)

    return jax.jit(make, out_shardings=tuple(array.sharding for array in arrays)).lower().compile()
