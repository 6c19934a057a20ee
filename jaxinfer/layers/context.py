"""Context: what the parts of a layer take beside their input."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
from flax import nnx

from jaxinfer.layers.dispatch import Dispatch
from jaxinfer.layers.linear import Linear
from jaxinfer.layers.param import QuantizedParam
from jaxinfer.layers.rope import Rotation

LayerVectors = Mapping[str, jax.Array]
"""One layer's vectors by name; a layer lacks those that its kind has not."""


class LayerContext(NamedTuple):
    """One layer's vectors, and the rows of a step. positions: [T] int32. rotation: of a layer that knows positions."""

    vectors: LayerVectors
    positions: jax.Array
    dispatch: Dispatch = Dispatch()
    rotation: Rotation | None = None

    def linear(self, matrix: nnx.Param | QuantizedParam, bias: str) -> Linear:
        """The projection by a matrix of the layer, with the vector `bias` if the layer has it."""
        return Linear.of(matrix, self.vectors.get(bias))
