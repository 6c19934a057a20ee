"""Tiles of keys and values, read through a page table: what the `xla` backend works on."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer_kernels.layouts import KVLayout, value_lanes
from jaxinfer_kernels.pages import as_type


class Pages(NamedTuple):
    """The keys and values of one layer: an array of a layout, and an index into its layers.

    table: [R, P] int32, page ids. per_tile: pages a tile takes. key_dim, value_dim: sizes of a key and a value.
    dtype: their type; the array is of it, or of unsigned integers that hold its bits.

    NOTE: the array is part of the state of every loop below, though no loop writes it. Where a loop only reads it and
    the next layer writes what went into the loop, not what came out of it, XLA copies all pages in every layer.
    """

    array: jax.Array
    layout: KVLayout
    layer: jax.Array | int
    table: jax.Array
    per_tile: int
    key_dim: int
    value_dim: int
    dtype: jnp.dtype

    @property
    def keys_per_tile(self) -> int:
        """Keys in one tile."""
        return self.per_tile * self.layout.page_size(self.array)

    @property
    def heads(self) -> int:
        """KV heads."""
        axis = {KVLayout.TOKENS: 4, KVLayout.HEADS: 3}.get(self.layout)
        return 1 if axis is None else self.array.shape[axis]

    def through_loop(self, array: jax.Array) -> "Pages":
        """The pages over a loop's state; JAX must not see that the loop passes it on unchanged."""
        return self._replace(array=jax.lax.optimization_barrier(array))

    def read(self, page_ids: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
        """K and V of pages [B, per_tile], as [B, Hkv, keys, Dk] and [B, Hkv, keys, Dv]."""
        match self.layout:
            case KVLayout.TOKENS:
                k, v = self._tokens_side(0, page_ids), self._tokens_side(1, page_ids)
            case KVLayout.HEADS if self.array.shape[2] == 2:
                k, v = self._heads_side(0, page_ids), self._heads_side(1, page_ids)
            case KVLayout.HEADS:
                k = self._heads_side(0, page_ids)
                v = k[..., value_lanes(self.key_dim, self.value_dim)[0] :]
            case KVLayout.LATENT:
                rows = self.array[self.layer, page_ids]
                k = v = rows.reshape(rows.shape[0], 1, -1, rows.shape[-1])
        k, v = as_type(k[..., : self.key_dim], self.dtype), as_type(v[..., : self.value_dim], self.dtype)
        return k.astype(dtype), v.astype(dtype)

    def _tokens_side(self, side: int, page_ids: jax.Array) -> jax.Array:
        """NOTE: gathered head by head. Batches of products want heads before keys, and XLA on CPU writes the swapped
        copy of a gathered tile so slowly that it took a third of a decode step.
        """
        heads = jnp.arange(self.array.shape[4])
        return _joined(self.array[self.layer, side, page_ids[:, None], :, heads[:, None]])

    def _heads_side(self, side: int, page_ids: jax.Array) -> jax.Array:
        heads = jnp.arange(self.array.shape[3])
        return _joined(self.array[self.layer, page_ids[:, None], side, heads[:, None]])


def _joined(pages: jax.Array) -> jax.Array:
    """[B, Hkv, pages, page, D] to [B, Hkv, keys, D]."""
    return pages.reshape(*pages.shape[:2], -1, pages.shape[-1])
