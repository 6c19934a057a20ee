"""Weight: what is known of a model's weight before it has values, and how values come to it."""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding

from jaxinfer.checkpoint.sources import Merged, Numbers, Placed, Reader, Source, Stacked
from jaxinfer.errors import ParameterError
from jaxinfer.layers.param import lead_axes
from jaxinfer.layers.stack import Repeats
from jaxinfer.parallel.expert_placement import slots_of
from jaxinfer.parallel.rules import ShardingRules
from jaxinfer.quantization.array import (
    LARGEST_SCALE,
    FourBits,
    as_held,
    four_bits,
    part_form,
    quantise,
    stored_bytes,
)
from jaxinfer.quantization.scheme import Part, Scheme

_LANES = 128
"""Columns of a TPU's tile."""
_GATHERED = ("embed", "positions")
"""Tables of which a step reads a few rows."""


class Leaf(NamedTuple):
    """An array that a weight is held in."""

    shape: tuple[int, ...]
    dtype: jnp.dtype
    axes: tuple[str | None, ...]

    @property
    def stacked(self) -> bool:
        """True where the first axis is over layers."""
        return self.axes[0] == "layers"


class Weight(NamedTuple):
    """One weight. shape, dtype, axes: of its values. layers: those it holds, None for a weight outside of layers. std:
    of random values; None: all 1 - offset. scheme: how it is held, None: as it is. placement: the expert of each slot,
    of weights of experts some of which are copied, and of the table of their slots."""

    path: tuple[str | int, ...]
    shape: tuple[int, ...]
    dtype: jnp.dtype
    axes: tuple[str | None, ...]
    std: float | None
    offset: float
    layers: tuple[int, ...] | None
    scheme: Scheme | None = None
    placement: tuple[int, ...] | None = None

    @property
    def stacked(self) -> bool:
        """True where the first axis is over layers."""
        return self.axes[0] == "layers"

    def of_layer(self) -> "Weight":
        """Return the weight of one layer, of a stacked weight."""
        assert self.stacked
        return self._replace(shape=self.shape[1:], axes=self.axes[1:], layers=None)

    @property
    def rows(self) -> tuple[int, ...]:
        """Lengths of the axes that number the rows of each matrix."""
        return self.shape[lead_axes(self.axes) : -1]

    @property
    def holds_slots(self) -> bool:
        """True for the table of slots, which is in no checkpoint."""
        return self.placement is not None and "expert" not in self.axes

    def slots(self) -> Source:
        """Return the source of one layer's part of the table of slots."""
        assert self.placement is not None
        return Numbers(tuple(map(tuple, slots_of(np.array(self.placement), *self.shape[-2:]).tolist())))

    def leaves(self, held: FourBits) -> tuple[Leaf, ...]:
        """Its arrays on devices that hold four bits so, in the order of the model's leaves."""
        if self.scheme is None:
            return (Leaf(self.shape, self.dtype, self.axes),)
        return tuple(self._leaf(self.scheme, part, held) for part in self.scheme.parts)

    def _leaf(self, scheme: Scheme, part: Part, held: FourBits) -> Leaf:
        lead = lead_axes(self.axes)
        form = part_form(scheme, part, self.shape, held, lead)
        return Leaf(form.shape, form.dtype, scheme.axes(part, self.axes, lead))

    def bytes(self, held: FourBits) -> int:
        """Return the bytes of all its arrays together, on devices that hold four bits so."""
        return sum(stored_bytes(leaf.shape, leaf.dtype) for leaf in self.leaves(held))

    def shardings(self, rules: ShardingRules, mesh: Mesh) -> tuple[Format | NamedSharding, ...]:
        """Return the place of each leaf. Rows are contiguous in a table that is gathered from, and in experts and
        codes that are split by columns. A group's scales are contiguous on a TPU, as its kernels take them.

        XLA for TPU would lay out by columns what has no multiple of 128 of them, and scales by experts or layers if
        these fill more of a tile than groups do; and transpose all of it in every step, to gather a few rows or for a
        kernel (compiled for a v6e: gpt-oss, 2880 columns, 90 groups; Qwen3-30B-A3B over four devices, 192 and 6).
        Scales of whole rows are one column, of which a TPU would make 128. Raises ParameterError if an axis cannot be
        split so.
        """
        whole = rules.sharding(mesh, self.axes, self.shape)
        if self.scheme is not None:
            self._check_groups(self.scheme, whole)
        leaves, columns = self.leaves(held_on(mesh)), whole.shard_shape(self.shape)[-1]
        orders = [self.order(leaf, columns, mesh.devices.flat[0].platform) for leaf in leaves]
        found = [rules.sharding(mesh, leaf.axes, leaf.shape) for leaf in leaves]
        return tuple(
            place if order is None else Format(Layout(order), place) for order, place in zip(orders, found, strict=True)
        )

    def order(self, leaf: Leaf, columns: int, platform: str) -> tuple[int, ...] | None:
        """Return the order of a leaf's axes on a platform's device, the minor one last; None if XLA is to choose it.
        columns: of the device's part of the values."""
        own, by_rows = leaf.shape[-1], tuple(range(len(leaf.shape)))
        if own == 1:
            return None
        if self.path[-1] in _GATHERED:
            return by_rows
        if own == self.shape[-1]:
            kernels = self.scheme is not None or "expert" in self.axes
            return by_rows if kernels and columns < own and columns % _LANES else None
        groups = own * columns // self.shape[-1]
        return (*by_rows[:-2], by_rows[-1], by_rows[-2]) if platform == "tpu" and groups % _LANES else None

    def _check_groups(self, scheme: Scheme, whole: NamedSharding) -> None:
        depth, part = self.shape[-1], whole.shard_shape(self.shape)[-1]
        if part != depth and part % (scheme.group or 1):
            raise ParameterError(
                "mesh",
                f"{self.axes[-1]}, {depth} in groups of {scheme.group} that share a scale, cannot be split over "
                f"{depth // part} devices: each one's part must begin on a group",
            )


def held_on(mesh: Mesh) -> FourBits:
    """Return how the devices of a mesh hold codes of four bits."""
    return four_bits(mesh.devices.flat[0].platform, mesh.size)


def describe(state: nnx.State, repeats: Repeats, held: dict[str, tuple[int, ...]]) -> tuple[Weight, ...]:
    """The weights of a module. held: the layers of each leaf of `Vectors`."""
    return tuple(_described(state, repeats, held))


def _described(state: nnx.State, repeats: Repeats, held: dict[str, tuple[int, ...]]) -> Iterator[Weight]:
    for path, parameter in nnx.to_flat_state(state):
        value, metadata = parameter.get_value(), parameter.get_metadata()
        part = metadata.get("part")
        if part not in (None, "codes"):
            continue
        names = tuple(name if isinstance(name, int) else str(name) for name in (path[:-1] if part else path))
        layers = None
        if names[0] == "vectors":
            layers = held[str(names[-1])]
        elif names[0] == "blocks":
            layers = repeats.layers_of(int(names[1]))
        axes, std, offset = (metadata[name] for name in ("axes", "std", "offset"))
        scheme, dtype = metadata.get("scheme"), metadata.get("dtype", value.dtype)
        yield Weight(names, value.shape, dtype, axes, std, offset, layers, scheme)


Sources = Sequence[Sequence[Source]]
"""Sources of a weight's values, or of each of its leaves if a checkpoint has those: one source, or one for each of its
layers."""

_LARGE = 64 << 20
"""Bytes of a stack below which all layers are read at once."""


def load(
    weight: Weight,
    sources: Sources,
    checkpoint: Reader,
    rules: ShardingRules,
    mesh: Mesh,
    loaded: Callable[[Sources], None] | None = None,
) -> tuple[jax.Array, ...]:
    """Reads each shard's part of a weight. loaded: is told of sources whose values are on the devices.

    Of a large stack one layer is in the host's memory at a time: all of a model's experts in one would not fit there.
    """
    if not weight.stacked or weight.bytes(held_on(mesh)) < _LARGE:
        made = _load(weight, sources, checkpoint, rules, mesh)
        if loaded is not None:
            loaded(sources)
        return made
    shardings, layer = weight.shardings(rules, mesh), weight.of_layer()
    stacks = jax.jit(partial(_empty, weight.leaves(held_on(mesh))), out_shardings=shardings)()
    places = (shardings, layer.shardings(rules, mesh), None)
    put = jax.jit(_put, donate_argnums=0, in_shardings=places, out_shardings=shardings)
    for number in range(weight.shape[0]):
        own = [several[number : number + 1] for several in sources]
        parts = _load(layer, own, checkpoint, rules, mesh)
        jax.block_until_ready(stacks)  # or more layers than two would be on their way
        stacks = put(stacks, parts, np.int32(number))
        if loaded is not None:
            loaded(own)
    return stacks


def _empty(leaves: Sequence[Leaf]) -> tuple[jax.Array, ...]:
    return tuple(jnp.zeros(leaf.shape, leaf.dtype) for leaf in leaves)


def _put(stacks: tuple[jax.Array, ...], parts: tuple[jax.Array, ...], number: jax.Array) -> tuple[jax.Array, ...]:
    """The stacks with the parts of one layer in their place."""
    pairs = zip(stacks, parts, strict=True)
    return tuple(jax.lax.dynamic_update_index_in_dim(stack, part, number, 0) for stack, part in pairs)


def _load(
    weight: Weight, sources: Sources, checkpoint: Reader, rules: ShardingRules, mesh: Mesh
) -> tuple[jax.Array, ...]:
    """All of a weight at once."""
    shardings, leaves = weight.shardings(rules, mesh), weight.leaves(held_on(mesh))
    if len(sources) == len(leaves):
        read = zip(leaves, sources, shardings, strict=True)
        return tuple(_read(leaf, several, checkpoint, place, weight.placement) for leaf, several, place in read)
    place = rules.sharding(mesh, weight.axes, weight.shape)
    values = _read(Leaf(weight.shape, weight.dtype, weight.axes), sources[0], checkpoint, place, weight.placement)
    made = jax.jit(_made, static_argnums=(1, 2), out_shardings=shardings)(values, weight, held_on(mesh))
    jax.block_until_ready(made)  # or the next weight's values arrive while these are still there
    return made


def _read(
    leaf: Leaf,
    sources: Sequence[Source],
    checkpoint: Reader,
    place: Format | NamedSharding,
    placement: tuple[int, ...] | None,
) -> jax.Array:
    source = Stacked(sources) if leaf.stacked else sources[0]
    if placement is not None and "expert" in leaf.axes:
        source = Placed(source, leaf.axes.index("expert"), placement)
    if merged := len(source.shape) - len(leaf.shape):
        source = Merged(source, lead_axes(leaf.axes), merged + 1)  # rows, which sources of scales have as values do

    def read(index: tuple[slice, ...]) -> np.ndarray:
        return as_held(checkpoint.read_source(source, index), leaf.dtype)

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        whole = index if index is not None else (slice(None),) * len(leaf.shape)
        return read(whole) if "expert" not in leaf.axes else _by_expert(read, whole, leaf)

    # The type is asked for where all devices are another host's.
    return jax.make_array_from_callback(leaf.shape, place, part, dtype=leaf.dtype)


def _by_expert(read: Callable[[tuple[slice, ...]], np.ndarray], index: tuple[slice, ...], leaf: Leaf) -> np.ndarray:
    """One expert after another: before they are cast, values may take four times the memory, or more."""
    axis = leaf.axes.index("expert")
    first, last, _ = index[axis].indices(leaf.shape[axis])
    each = [read((*index[:axis], slice(expert, expert + 1), *index[axis + 1 :])) for expert in range(first, last)]
    return np.concatenate(each, axis)


def random(weight: Weight, seed: int, rules: ShardingRules, mesh: Mesh) -> tuple[jax.Array, ...]:
    """Values keyed by what a weight is and its layer, so that they do not depend on the layout."""
    kind = zlib.crc32(str(weight.path[-1]).encode())
    keys = np.array([[kind, seed, layer] for layer in weight.layers or (0,)], np.uint32)
    draw = jax.jit(_drawn, static_argnums=(1, 2), out_shardings=weight.shardings(rules, mesh))
    # Of what weights that are alike share only: they share the program then.
    return draw(keys, weight._replace(path=weight.path[-1:], layers=None), held_on(mesh))


def _drawn(keys: jax.Array, weight: Weight, held: FourBits) -> tuple[jax.Array, ...]:
    if weight.scheme is not None and weight.stacked:
        return _random_stack(keys, weight, weight.scheme, held)
    values = _values(keys, weight)
    return (values,) if weight.scheme is None else _random_parts(values, weight, weight.scheme, held)


def _made(values: jax.Array, weight: Weight, held: FourBits) -> tuple[jax.Array, ...]:
    """The arrays that a weight with a scheme is held in."""
    assert weight.scheme is not None
    parts = dict(zip(weight.scheme.parts, quantise(values, weight.scheme), strict=True))
    return _as_leaves(parts, weight, weight.scheme, held)


def _as_leaves(
    parts: Mapping[Part, jax.Array], weight: Weight, scheme: Scheme, held: FourBits
) -> tuple[jax.Array, ...]:
    """parts: one value an element, with the weight's own axes of rows."""
    lead, leaves = lead_axes(weight.axes), zip(scheme.parts, weight.leaves(held), strict=True)
    return tuple(
        as_held(parts[part].reshape(scheme.shape(part, weight.shape, lead)), leaf.dtype) for part, leaf in leaves
    )


def _random_stack(keys: jax.Array, weight: Weight, scheme: Scheme, held: FourBits) -> tuple[jax.Array, ...]:
    """Layer by layer: values take many times the room of their codes."""
    layer = weight.of_layer()
    return jax.lax.map(lambda key: _random_parts(_values(key[None], layer), layer, scheme, held), keys)


def _random_parts(values: jax.Array, weight: Weight, scheme: Scheme, held: FourBits) -> tuple[jax.Array, ...]:
    """Quantise random values into the parts of a weight. Columns are in reversed order, zeros are 0, and factors keep
    scales within the range of their type."""
    factors = jnp.ones((*values.shape[:-1], 1), jnp.float32)
    if scheme.factors:
        factors = jnp.max(jnp.abs(values), axis=-1, keepdims=True).astype(jnp.float32) / LARGEST_SCALE
    made = quantise(values / factors, replace(scheme, zeros=False, ordered=False, factors=False))
    reverse, shape = jnp.arange(values.shape[-1])[::-1], scheme.shape("order", weight.shape, lead_axes(weight.axes))
    sides: dict[Part, jax.Array] = {"order": jnp.broadcast_to(reverse, shape), "zeros": jnp.zeros_like(made[1])}
    parts: dict[Part, jax.Array] = {"codes": made[0], "scales": made[1], "factors": factors, **sides}
    return _as_leaves(parts, weight, scheme, held)


def _values(keys: jax.Array, weight: Weight) -> jax.Array:
    if weight.holds_slots:
        return jnp.broadcast_to(weight.slots().read((), _no_tensor), weight.shape).astype(weight.dtype)
    if weight.placement is not None:
        axis, placement = weight.axes.index("expert"), np.array(weight.placement)
        shape = (*weight.shape[:axis], max(weight.placement) + 1, *weight.shape[axis + 1 :])
        return jnp.take(_values(keys, weight._replace(shape=shape, placement=None)), placement, axis)
    std, dtype = weight.std, weight.dtype
    if std is None:
        return jnp.full(weight.shape, 1 - weight.offset, dtype)

    def one(words: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(words[1]), words[0]), words[2])
        shape = weight.shape[1:] if weight.stacked else weight.shape
        return (jax.random.normal(key, shape, jnp.float32) * std).astype(dtype)

    return jax.lax.map(one, keys) if weight.stacked else one(keys[0])


def _no_tensor(name: str, index: tuple[slice, ...]) -> np.ndarray:
    raise AssertionError(f"{name} is read from no checkpoint")
