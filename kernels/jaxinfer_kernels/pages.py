"""KV pages: one array `[layers, 2, pages, page, Hkv, D]` a group; K at index 0 of the second axis, V at 1."""

import jax
import jax.numpy as jnp

from jaxinfer_kernels.rows import TokenPlaces

# NOTE: `kv_pages` is indexed with the layer and more; `kv_pages[layer]` alone is a copy of a whole layer.


def write_kv(kv_pages: jax.Array, layer: jax.Array | int, k: jax.Array, v: jax.Array, places: TokenPlaces) -> jax.Array:
    """Writes k and v, [T, Hkv, D], of one layer to their places; in place where `kv_pages` is donated."""
    kv_pages = kv_pages.at[layer, 0, places.page, places.slot].set(k)
    return kv_pages.at[layer, 1, places.page, places.slot].set(v)


def quantise(x: jax.Array, scale: jax.Array | float | None, dtype: jnp.dtype) -> jax.Array:
    """`x / scale` in the type of the pages, saturated at its range; a plain cast where scale is None."""
    if scale is None:
        return x.astype(dtype)
    scaled = x.astype(jnp.float32) / scale
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        return jnp.clip(jnp.round(scaled), info.min, info.max).astype(dtype)
    limit = float(jnp.finfo(dtype).max)
    return jnp.clip(scaled, -limit, limit).astype(dtype)


def copy_pages(kv_pages: jax.Array, source: jax.Array, destination: jax.Array) -> jax.Array:
    """Copies whole pages over all layers: page source[i] to page destination[i]; in place under donation.

    kv_pages: [L, 2, N, page, Hkv, D]. source, destination: [C] int32; (0, 0) is padding. All are read before any is
    written; destinations other than 0 must differ.
    """
    return kv_pages.at[:, :, destination].set(kv_pages[:, :, source])
