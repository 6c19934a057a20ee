"""Norms, biases and other small weights of all layers, stacked: few leaves, since every leaf costs time at dispatch."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from jaxinfer.layers.block import PARTS
from jaxinfer.layers.context import LayerVectors
from jaxinfer.layers.param import Vector, param, value
from jaxinfer.layers.stack import Repeats
from jaxinfer.model_config.layer_kind import LayerKind, NormKind


def layer_vectors(kind: LayerKind, hidden: int) -> dict[str, Vector]:
    """Return the vectors of a layer of this kind, by name."""
    found: dict[str, Vector] = {}
    if kind.norms != "after":
        found |= _norm("input_norm", kind.norm, hidden)
        if not kind.parallel:
            found |= _norm("mlp_norm", kind.norm, hidden)
    if kind.norms != "before":
        found |= _norm("attention_out_norm", kind.norm, hidden) | _norm("mlp_out_norm", kind.norm, hidden)
    for part in (kind.mixer, kind.mlp):
        found |= PARTS[type(part)].vectors(part, hidden)
    return found


def _norm(name: str, kind: NormKind, size: int) -> dict[str, Vector]:
    bias = {f"{name}_bias": Vector((size,), ("embed",), 0.1)} if kind.bias else {}
    return {name: Vector((size,), ("embed",), offset=kind.offset), **bias}


class Vectors(nnx.Module):
    """The vectors of all layers: one leaf for each name, or for each shape where layers differ in it.

    A leaf is [count, *shape], over those layers that have it. A leaf of the name `x` is called `x`, others of that name
    `x_1`, `x_2`, ….
    """

    def __init__(self, kinds: Sequence[LayerKind], hidden: int, dtype: jnp.dtype):
        known = {kind: layer_vectors(kind, hidden) for kind in dict.fromkeys(kinds)}
        members: dict[tuple[str, Vector], list[int]] = {}
        for layer, kind in enumerate(kinds):
            for name, vector in known[kind].items():
                members.setdefault((name, vector), []).append(layer)
        self.leaves, counts = nnx.Dict(), dict[str, int]()
        held: list[tuple[str, str, tuple[int, ...]]] = []
        for (name, vector), layers in members.items():
            number = counts[name] = counts.get(name, -1) + 1
            leaf = f"{name}_{number}" if number else name
            dtype_held = jnp.dtype(vector.dtype or dtype)
            axes = ("layers", *vector.axes)
            self.leaves[leaf] = param((len(layers), *vector.shape), axes, dtype_held, vector.std, vector.offset)
            held.append((leaf, name, tuple(layers)))
        self.held = tuple(held)

    @property
    def layers(self) -> dict[str, tuple[int, ...]]:
        """Layers that each leaf holds."""
        return {leaf: layers for leaf, _, layers in self.held}

    def of_layer(self, repeats: Repeats, block: int, repeat: jax.Array | int) -> LayerVectors:
        """The vectors of the layer that `block` is in a repeat."""
        found = {}
        for leaf, name, layers in self.held:
            index = repeats.ordinal(layers, block, repeat)
            if index is not None:
                found[name] = value(self.leaves[leaf])[index]
        return found
