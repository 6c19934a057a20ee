"""Writing to KV pages and copying them, in plain JAX, for every layout."""

import jax
import jax.numpy as jnp

from jaxinfer_kernels.layouts import KVLayout, heads_rows, widened
from jaxinfer_kernels.rows import TokenPlaces

_LANES = 128

# NOTE: `kv_pages` is indexed with the layer and more; `kv_pages[layer]` alone is a copy of a whole layer.


def write_kv(
    kv_pages: jax.Array,
    layer: jax.Array | int,
    k: jax.Array,
    v: jax.Array | None,
    places: TokenPlaces,
    layout: KVLayout,
) -> jax.Array:
    """Writes k [T, Hkv, Dk] and v [T, Hkv, Dv] of one layer to their places; in place where `kv_pages` is donated.

    LATENT: k is [T, 1, Dk], and v is None, the beginning of k.
    """
    page, slot = places.page, places.slot
    if v is None:
        return kv_pages.at[layer, page, slot].set(widened(k[:, 0], kv_pages.shape[-1]))
    match layout:
        case KVLayout.TOKENS:
            kv_pages = kv_pages.at[layer, 0, page, slot, :, : k.shape[-1]].set(k)
            return kv_pages.at[layer, 1, page, slot, :, : v.shape[-1]].set(v)
        case KVLayout.HEADS:
            # Every axis is indexed: with slices between, XLA for TPU lays all pages out anew for the scatter, twice.
            side, head = jnp.arange(kv_pages.shape[2])[:, None], jnp.arange(kv_pages.shape[3])
            new = heads_rows(k, v, kv_pages.shape[2], kv_pages.shape[5])
            return kv_pages.at[layer, page[:, None, None], side, head, slot[:, None, None]].set(new)
        case _:
            raise ValueError(f"layout {layout} keeps no values of their own")


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


def as_type(x: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Reinterpret the bits of x as another type of equal width."""
    return x if x.dtype == dtype else jax.lax.bitcast_convert_type(x, dtype)


def copy_pages(
    kv_pages: jax.Array, source: jax.Array, destination: jax.Array, layout: KVLayout = KVLayout.TOKENS
) -> jax.Array:
    """Copies whole pages over all layers: page source[i] to page destination[i]; in place under donation.

    kv_pages: an array of `layout`. source, destination: [C] int32; (0, 0) is padding. All are read before any is
    written; destinations other than 0 must differ.
    """
    axis = layout.page_axis
    if kv_pages.shape[-1] <= _LANES:
        before = (slice(None),) * axis
        return kv_pages.at[*before, destination].set(kv_pages[*before, source])
    # For a gather of larger pages over many layers XLA for TPU cuts all pages in two, which copies them (21 layers of
    # heads of 256); of one layer after another it does not.
    layers = jnp.arange(kv_pages.shape[0])[:, None]
    before = (layers, *(slice(None),) * (axis - 1))
    return kv_pages.at[*before, destination].set(kv_pages[*before, source])
