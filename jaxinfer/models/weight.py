"""Weight: what is known of a model's leaf before it has values, and how values come to it."""

import zlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding

from jaxinfer.checkpoint.safetensors import Checkpoint
from jaxinfer.checkpoint.sources import Source, Stacked
from jaxinfer.layers.stack import Repeats

_GATHERED = ("embed", "positions")
"""Tables of which a step reads a few rows."""


class Weight(NamedTuple):
    """One leaf. layers: those it holds, None for a weight outside of layers. std: of random values; None: all
    1 - offset."""

    path: tuple[str | int, ...]
    shape: tuple[int, ...]
    dtype: jnp.dtype
    axes: tuple[str | None, ...]
    std: float | None
    offset: float
    layers: tuple[int, ...] | None

    @property
    def stacked(self) -> bool:
        """True where the first axis is over layers."""
        return self.axes[0] == "layers"

    def placed(self, sharding: NamedSharding) -> Format | NamedSharding:
        """`sharding`, and for a table that its rows are contiguous.

        Where the columns are no multiple of 128, XLA for TPU would lay it out by columns, and transpose all of it in
        every step to gather a few rows (compiled for a v6e: gpt-oss, 2880 columns).
        """
        if self.path[-1] not in _GATHERED:
            return sharding
        return Format(Layout(tuple(range(len(self.shape)))), sharding)


def describe(state: nnx.State, repeats: Repeats, held: dict[str, tuple[int, ...]]) -> tuple[Weight, ...]:
    """The leaves of a module. held: the layers of each leaf of `Vectors`."""
    described = []
    for path, parameter in nnx.to_flat_state(state):
        value, metadata = parameter.get_value(), parameter.get_metadata()
        names = tuple(part if isinstance(part, int) else str(part) for part in path)
        layers = None
        if names[0] == "vectors":
            layers = held[str(names[-1])]
        elif names[0] == "blocks":
            layers = repeats.layers_of(int(names[1]))
        axes, std, offset = (metadata[name] for name in ("axes", "std", "offset"))
        described.append(Weight(names, value.shape, value.dtype, axes, std, offset, layers))
    return tuple(described)


def load(weight: Weight, sources: list[Source], checkpoint: Checkpoint, sharding: NamedSharding) -> jax.Array:
    """Reads each shard's part of a weight; sources: one, or one for each of the weight's layers."""
    source = Stacked(sources) if weight.stacked else sources[0]

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        whole = index if index is not None else (slice(None),) * len(weight.shape)
        return source.read(whole, checkpoint.read).astype(weight.dtype)

    return jax.make_array_from_callback(weight.shape, weight.placed(sharding), part)


def random(weight: Weight, seed: int, sharding: NamedSharding) -> jax.Array:
    """Values keyed by what a weight is and its layer, so that they do not depend on the layout."""
    kind = zlib.crc32(str(weight.path[-1]).encode())
    layers = weight.layers or (0,)
    keys = np.array([[kind, seed, layer] for layer in layers], np.uint32)
    draw = jax.jit(_values, static_argnums=(1, 2, 3, 4, 5), out_shardings=weight.placed(sharding))
    return draw(keys, weight.shape, weight.dtype, weight.std, weight.offset, weight.stacked)


def _values(
    keys: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype, std: float | None, offset: float, stacked: bool
) -> jax.Array:
    if std is None:
        return jnp.full(shape, 1 - offset, dtype)

    def one(words: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(words[1]), words[0]), words[2])
        return (jax.random.normal(key, shape[1:] if stacked else shape, jnp.float32) * std).astype(dtype)

    return jax.lax.map(one, keys) if stacked else one(keys[0])
