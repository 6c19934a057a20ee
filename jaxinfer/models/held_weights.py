"""A decoder's weights in a folder of leaves: whole leaves, or, over a mesh, the parts that heads and rows lie in."""

import re
from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp

from jaxinfer.checkpoint.formats.parts.stored import TensorPart
from jaxinfer.checkpoint.formats.parts.values import Values
from jaxinfer.checkpoint.sources import Element, Filled, Merged, Padded, Placed, Source, Split, Tensor
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.head_spread import HeadSpread, Order
from jaxinfer.model_config.layer_kind import LayerKind
from jaxinfer.models.head_places import columns_by_head
from jaxinfer.models.leaf_key import KV_SCALES, leaf_names
from jaxinfer.models.plan import plan_model
from jaxinfer.models.weight import Weight
from jaxinfer.quantization.array import FourBits
from jaxinfer.quantization.scheme import Scheme

_OF_PARTS = re.compile(r"_\d+$")
"""Suffix that `Vectors` adds to a name if layers differ in shape."""


class _Place(NamedTuple):
    """Place of a layer's weight: the canonical weight that holds it, and its number there; None if it is all of
    that."""

    weight: Weight
    number: int | None


class HeldWeights:
    """The sources of the weights of `config` over the leaves of its canonical form."""

    def __init__(self, config: DecoderConfig, dtype: jnp.dtype):
        self._config = config
        plan = plan_model(canonical(config), dtype)
        self._places: dict[tuple[str, int | None], _Place] = {}
        self._known: dict[str, Weight] = {}
        for one in (*plan.weights, *plan.head):
            self._known[".".join(map(str, one.path))] = one
            for number, layer in enumerate(one.layers or (None,)):
                self._places[weight_name(one), layer] = _Place(one, number if one.stacked else None)

    def whole(self, weight: Weight, held: FourBits) -> tuple[str, ...] | None:
        """The leaves that a weight's arrays are on devices that hold four bits so, None where they are none as they
        lie."""
        known = self._known.get(".".join(map(str, weight.path)))
        if known is None or weight.path[-1] == "kv_scale" or known.layers != weight.layers:
            return None
        return leaf_names(known) if known.leaves("bytes") == weight.leaves(held) else None

    def sources(self, weight: Weight) -> list[list[Source]]:
        """Return the sources of each of a weight's leaves: one source, or one for each of its layers."""
        if weight.holds_slots:
            return [[weight.slots()] * len(weight.layers or ())]
        parts: tuple[TensorPart, ...] = ("weight",) if weight.scheme is None else weight.scheme.parts
        return [[self.source(weight_name(weight), layer, part) for layer in weight.layers or (None,)] for part in parts]

    def source(self, name: str, layer: int | None, part: TensorPart) -> Source:
        """A part of a weight of one layer, or of one outside of layers."""
        if name == "kv_scale":
            return self._kv_scale(layer or 0)
        weight, number = self._places[name, layer]
        if part == "weight" and weight.scheme is not None:
            return self._values(name, layer, weight.scheme)
        at = 0 if part == "weight" else weight.scheme.parts.index(part)  # pyright: ignore
        leaf = Tensor(leaf_names(weight)[at], weight.leaves("bytes")[at].shape)
        one = leaf if number is None else Element(leaf, number)
        if part in ("scales", "zeros", "factors"):
            one = _with_rows(one, (weight if number is None else weight.of_layer()).rows)
        fill = 1.0 if part == "scales" and self._config.declared is None else 0.0  # what `quantise` makes of zeros
        if layer is not None:
            return self._with_heads(name, layer, one, fill)
        rows = self._config.table_shape[0]
        is_table = name in ("embed", "table", "table_bias") and rows != one.shape[0]
        return Padded(one, 0, rows, fill) if is_table and part != "order" else one

    def _values(self, name: str, layer: int | None, scheme: Scheme) -> Source:
        codes, scales = (self.source(name, layer, part) for part in ("codes", "scales"))
        zeros = self.source(name, layer, "zeros") if scheme.zeros else None
        return Values(codes, scales, scheme.group or codes.shape[-1], zeros)

    def _kv_scale(self, layer: int) -> Source:
        if self._config.kv_scales is None:
            return Filled((2,), 1.0)
        return Element(Tensor(KV_SCALES, (self._config.num_layers, 2)), layer)

    def _with_heads(self, name: str, layer: int, one: Source, fill: float) -> Source:
        """Move a source's heads to the places that they have on the mesh."""
        attention = self._config.layers[layer].mixer
        spread, over = attention.spread, attention.qk_norm_over
        if spread is None:
            return one
        if name in ("qkv", "qkv_bias"):
            return _by_kv_head(one, spread, spread.fused_order, fill)
        if name == "sinks" or (name == "q_norm" and over != "head"):
            return _by_kv_head(one, spread, spread.query_order, fill)
        if name == "k_norm" and over != "head":
            return _by_kv_head(one, spread, spread.kv_order, fill)
        return columns_by_head(one, spread, fill) if name == "out" else one


def canonical(config: DecoderConfig) -> DecoderConfig:
    """Return the decoder over no mesh, with keys and values in the type of activations."""

    def own(kind: LayerKind) -> LayerKind:
        mixer = replace(kind.mixer, kv_codes=None, spread=None)
        if (spread := kind.mixer.spread) is not None:
            mixer = replace(mixer, num_heads=spread.query_heads, num_kv_heads=spread.kv_heads)
        mlp = kind.mlp if kind.experts is None else replace(kind.experts, redundant=0, copies=1)
        return replace(kind, mixer=mixer, mlp=mlp)

    return replace(config.with_kinds(own), vocab_shards=1, kv_scales=None)


def weight_name(weight: Weight) -> str:
    """A weight by what it is, whatever layers it holds."""
    name = str(weight.path[-1])
    if weight.path[0] == "vectors":
        return _OF_PARTS.sub("", name)
    return f"shared_{name}" if "shared" in weight.path else name


def _with_rows(side: Source, rows: tuple[int, ...]) -> Source:
    """Scales, zeros or factors [..., N, G] with the axes of rows that the values have."""
    *lead, _, groups = side.shape
    return Split(side, (*((length,) for length in lead), rows, (groups,)))


def _by_kv_head(heads: Source, spread: HeadSpread, order: Order, fill: float) -> Source:
    """Heads [Hkv, heads of each, ...] in the places of `order`."""
    placed = Placed(Merged(heads, 0, 2), 0, order, fill)
    of_each = len(order) // spread.num_kv_heads
    return Split(placed, ((spread.num_kv_heads, of_each), *((length,) for length in placed.shape[1:])))
