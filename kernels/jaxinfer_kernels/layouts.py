"""Layouts of the array with the keys and values of a group of layers: one a platform, shared by its backends."""

from enum import StrEnum

import jax
import jax.numpy as jnp

LANES = 128
"""Elements in the last axis of a TPU's tile."""


class KVLayout(StrEnum):
    """The layouts. Dk and Dv are the sizes of a key and a value.

    TOKENS: [L, 2, N, page, Hkv, D], D = max(Dk, Dv); K at 0 of the second axis, V at 1; a page holds a token's heads
    side by side. For CPU and GPU.

    HEADS: [L, N, S, Hkv, page, W]; a page holds each head's tokens below each other, a tile that a TPU multiplies as
    it lies, and is one run of memory. W is a multiple of 128. Where K and V both fit into 64 lanes, S is 1 and they
    share a row of 128, K from lane 0, V from lane 64; else S is 2, K at 0 and V at 1.

    LATENT: [L, N, page, W]; what multi-head latent attention keeps of a token, one row for all heads, which is its key;
    the value is the beginning of the same row. W is Dk, rounded up to 128 on TPU.

    Lanes beyond a key's or a value's size hold 0.
    """

    TOKENS = "tokens"
    HEADS = "heads"
    LATENT = "latent"

    @property
    def page_axis(self) -> int:
        """The axis that page ids index."""
        return 2 if self is KVLayout.TOKENS else 1

    @property
    def axes(self) -> tuple[str | None, ...]:
        """Logical names of the axes, for sharding."""
        return _AXES[self]

    def shape(
        self, *, layers: int, pages: int, page_size: int, kv_heads: int, key_dim: int, value_dim: int
    ) -> tuple[int, ...]:
        """The shape of the array. LATENT: key_dim is the row's width as kept, kv_heads is not looked at."""
        match self:
            case KVLayout.TOKENS:
                return (layers, 2, pages, page_size, kv_heads, max(key_dim, value_dim))
            case KVLayout.HEADS:
                sides, width = heads_width(key_dim, value_dim)
                return (layers, pages, sides, kv_heads, page_size, width)
            case KVLayout.LATENT:
                return (layers, pages, page_size, key_dim)

    def page_size(self, kv_pages: jax.Array | jax.ShapeDtypeStruct) -> int:
        """Tokens a page of an array of this layout."""
        return kv_pages.shape[{KVLayout.TOKENS: 3, KVLayout.HEADS: 4, KVLayout.LATENT: 2}[self]]


_AXES: dict[KVLayout, tuple[str | None, ...]] = {
    KVLayout.TOKENS: ("layers", None, None, None, "kv_heads", "head_dim"),
    KVLayout.HEADS: ("layers", None, None, "kv_heads", None, "head_dim"),
    KVLayout.LATENT: ("layers", None, None, None),
}


def platform_layout(platform: str) -> KVLayout:
    """The layout that the backends of a platform share: `tpu`, or any other (`cpu`, `gpu`, `cuda`)."""
    return KVLayout.HEADS if platform == "tpu" else KVLayout.TOKENS


def heads_width(key_dim: int, value_dim: int) -> tuple[int, int]:
    """S and W of the HEADS layout."""
    if max(key_dim, value_dim) <= LANES // 2:
        return 1, LANES
    return 2, -(-max(key_dim, value_dim) // LANES) * LANES


def value_lanes(key_dim: int, value_dim: int) -> tuple[int, int]:
    """The lanes of its row in the HEADS layout that a value takes."""
    low = LANES // 2 if heads_width(key_dim, value_dim)[0] == 1 else 0
    return low, low + value_dim


def heads_rows(k: jax.Array, v: jax.Array | None, sides: int, width: int) -> jax.Array:
    """k [..., Hkv, Dk] and v [..., Hkv, Dv] as rows of the HEADS layout, [..., S, Hkv, W], for its S and W.

    v is None where it is part of k: rows of the LATENT layout are those of one head with S = 1.
    """
    if v is None:
        return widened(k, width)[..., None, :, :]
    if sides == 2:
        return jnp.stack([widened(k, width), widened(v, width)], axis=-3)
    return jnp.concatenate([widened(k, width // 2), widened(v, width // 2)], axis=-1)[..., None, :, :]


def widened(x: jax.Array, width: int) -> jax.Array:
    """x with zeros after its last axis, up to `width`."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])
