"""Norms, biases and other small weights of all layers, stacked: few leaves, since every leaf costs time at dispatch."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxinfer.layers.mlp import gate_up_block
from jaxinfer.layers.param import param, value
from jaxinfer.layers.stack import Repeats
from jaxinfer.model_config.layer_kind import AttentionKind, LayerKind, NormKind
from jaxinfer.model_config.mlp_kind import MlpKind

Axes = tuple[str | None, ...]


class Vector(NamedTuple):
    """One small weight of a layer. std: of random values; None: all ones less `offset`. dtype: the type that it is kept
    in; None: the model's."""

    shape: tuple[int, ...]
    axes: Axes
    std: float | None = None
    offset: float = 0.0
    dtype: str | None = None


EXPERT_SLOTS = "expert_slots"
"""The slots of each expert where some are copied: no checkpoint has them."""

LayerVectors = Mapping[str, jax.Array]
"""One layer's vectors by name; a layer lacks those that its kind has not."""


def layer_vectors(kind: LayerKind, hidden: int) -> dict[str, Vector]:
    """Return the vectors of a layer of this kind, by name."""
    found: dict[str, Vector] = {}
    if kind.norms != "after":
        found |= _norm("input_norm", kind.norm, hidden)
        if not kind.parallel:
            found |= _norm("mlp_norm", kind.norm, hidden)
    if kind.norms != "before":
        found |= _norm("attention_out_norm", kind.norm, hidden) | _norm("mlp_out_norm", kind.norm, hidden)
    return found | _of_attention(kind.attention, hidden) | _of_mlp(kind.mlp, hidden)


def _norm(name: str, kind: NormKind, size: int) -> dict[str, Vector]:
    bias = {f"{name}_bias": Vector((size,), ("embed",), 0.1)} if kind.bias else {}
    return {name: Vector((size,), ("embed",), offset=kind.offset), **bias}


def _of_attention(kind: AttentionKind, hidden: int) -> dict[str, Vector]:
    heads, group, dim = kind.num_kv_heads, kind.group_size, kind.head_dim
    axes: Axes = ("kv_heads", "q_per_kv", "head_dim")
    found = {}
    if kind.qk_norm is not None:
        for name, count in (("q_norm", group), ("k_norm", 1)):
            whole = Vector((heads, count, dim), axes, offset=kind.qk_norm.offset)
            one = Vector((dim,), ("head_dim",), offset=kind.qk_norm.offset)
            found[name] = one if kind.qk_norm_over == "head" else whole
    if kind.qkv_bias:
        found["qkv_bias"] = Vector((heads, group + 2, dim), axes, 0.5)
    if kind.out_bias:
        found["out_bias"] = Vector((hidden,), ("embed",), 0.1)
    if kind.sinks:
        found["sinks"] = Vector((heads, group), ("kv_heads", "q_per_kv"), 1.0)
    if kind.kv.scaled:
        found["kv_scale"] = Vector((2,), (None,), dtype="float32")
    return found


def _of_mlp(kind: MlpKind, hidden: int) -> dict[str, Vector]:
    if kind.experts is not None:
        return _of_experts(kind, hidden)
    if not kind.bias:
        return {}
    down = {"down_bias": Vector((hidden,), ("embed",), 0.1)}
    if not kind.gated:
        return {"up_bias": Vector((kind.size,), ("mlp",), 0.1), **down}
    return {"gate_up_bias": _gate_up_bias(kind.size), **down}


def _of_experts(kind: MlpKind, hidden: int) -> dict[str, Vector]:
    experts, found = kind.experts, {}
    assert experts is not None
    if experts.router.bias:
        found["router_bias"] = Vector((experts.count,), (None,), 0.1)
    if experts.router.choice_bias:
        found["choice_bias"] = Vector((experts.count,), (None,), 0.1, dtype="float32")
    if experts.redundant:
        found[EXPERT_SLOTS] = Vector((experts.count, experts.copies), (None, None), dtype="int32")
    if kind.bias:
        pair = _gate_up_bias(experts.size, "expert_mlp")
        found["experts_gate_up_bias"] = Vector((experts.slots, *pair.shape), ("expert", *pair.axes), 0.1)
        found["experts_down_bias"] = Vector((experts.slots, hidden), ("expert", "embed"), 0.1)
    return found


def _gate_up_bias(size: int, channels: str = "mlp") -> Vector:
    block = gate_up_block(size)
    return Vector((size // block, 2, block), (channels, None, None), 0.1)


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
