"""Stages whose devices are all of other hosts: this process has no programs for them, and knows of their arrays which
shape and place they have. They are handed over from there."""

from typing import Any

import jax

from jaxinfer.engine.step.buckets import Buckets
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.programs.compiled import Programs
from jaxinfer.runner.programs.table import Name, Program, ProgramTable


def has_devices_here(model: LoadedModel) -> bool:
    """Return whether some of a model's devices belong to this process."""
    own = jax.process_index()
    return any(device.process_index == own for device in model.mesh.devices.flat)


def absent(arrays: Any) -> Any:
    """Make arrays none of whose devices are here, of the shapes, dtypes and shardings of others."""
    return jax.tree.map(_absent, arrays)


def _absent(array: Any) -> jax.Array:
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, [], dtype=array.dtype)


class AbsentPrograms(Programs):
    """Programs that run on other hosts: each gives absent arrays, the same at every call, and none is made."""

    def __init__(self, model: LoadedModel, shapes: EngineShapes, table: ProgramTable):
        super().__init__(model, shapes, table=table)
        self._results: dict[Name, Any] = {}

    def names_of(self, buckets: Buckets) -> tuple[Name, ...]:
        return ()

    def __getitem__(self, name: Name) -> Any:
        if name not in self._results:
            self._results[name] = absent(_results(self.table[name]))
        return lambda *_: self._results[name]


def _results(program: Program) -> Any:
    """Shapes and places of what a program gives."""
    shapes, places = jax.eval_shape(program.function, *program.arguments), program.out_shardings
    # A place stands for all that a part of the results has.
    return jax.tree.map(_placed, places, shapes, is_leaf=lambda x: isinstance(x, jax.sharding.Sharding))


def _placed(place: Any, shapes: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes)
