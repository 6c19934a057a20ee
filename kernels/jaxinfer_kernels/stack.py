"""StackLayer: one layer's weights among those of many, which a kernel reads where they lie."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp


@partial(jax.tree_util.register_dataclass, data_fields=("stack", "index"), meta_fields=())
@dataclass(frozen=True)
class StackLayer:
    """Layer `index` of a stack: what a matmul takes in place of an array [*shape], for weights, scales and zeros alike.

    A slice of the stack would be copied before a kernel could take it, in every step; a kernel of `mosaic_tpu` or
    `native` is told the layer's number instead.

    stack: [L, *shape]. index: int32, a scalar in [0, L).
    """

    stack: jax.Array
    index: jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the layer."""
        return self.stack.shape[1:]

    @property
    def ndim(self) -> int:
        """Axes of the layer."""
        return self.stack.ndim - 1

    @property
    def dtype(self) -> jnp.dtype:
        """The stack's."""
        return self.stack.dtype

    def reshape(self, *shape: int) -> "StackLayer":
        """The layer in another shape."""
        return StackLayer(self.stack.reshape(self.stack.shape[0], *shape), self.index)

    def swapaxes(self, one: int, other: int) -> "StackLayer":
        """Two axes of the layer, both counted from the last, as -1, in each other's place."""
        assert max(one, other) < 0
        return StackLayer(self.stack.swapaxes(one, other), self.index)

    def sliced(self) -> jax.Array:
        """The layer, an array of its own."""
        return jax.lax.dynamic_index_in_dim(self.stack, self.index, keepdims=False)


Weights = jax.Array | StackLayer


def alone(array: jax.Array) -> StackLayer:
    """Return an array as the one layer of a stack."""
    return StackLayer(array[None], jnp.int32(0))


def sliced(tree: Any) -> Any:
    """A tree in which each StackLayer became an array of its own."""
    return jax.tree.map(lambda x: x.sliced() if isinstance(x, StackLayer) else x, tree, is_leaf=_is_layer)


def _is_layer(x: object) -> bool:
    return isinstance(x, StackLayer)


def whole(weights: Weights) -> jax.Array:
    """The array that a kernel is given: a layer's stack, or the weights themselves."""
    return weights.stack if isinstance(weights, StackLayer) else weights


def layer_index(weights: Weights) -> tuple[jax.Array, ...]:
    """Return the argument by which a kernel finds a layer in `whole`: its number, int32 [1]; empty for an array."""
    return (weights.index.astype(jnp.int32).reshape(1),) if isinstance(weights, StackLayer) else ()
