"""Ragged attention over paged KV: the one signature behind which all backends stand."""

import jax

from jaxinfer_kernels.blocks import BlockSizes, default_block_sizes
from jaxinfer_kernels.layouts import KVLayout
from jaxinfer_kernels.pages import quantise, write_kv
from jaxinfer_kernels.rows import RaggedRows, token_places
from jaxinfer_kernels.tiles import Pages
from jaxinfer_kernels.xla import Scoring, attend_pages

BACKENDS = ("xla",)


def ragged_paged_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_pages: jax.Array,
    layer: jax.Array | int,
    rows: RaggedRows,
    *,
    short_rows: int | jax.Array,
    short_len: int,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: jax.Array | None = None,
    kv_scale: tuple[jax.Array | float, jax.Array | float] | None = None,
    backend: str = "xla",
    layout: KVLayout = KVLayout.TOKENS,
    block_sizes: BlockSizes | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Writes k and v into the pages, then attends causally from each token over its row's keys.

    q: [T, Hq, Dk]; query head h reads KV head h // (Hq // Hkv). k: [T, Hkv, Dk]. v: [T, Hkv, Dv]. kv_pages: an array of
    `layout`, donated by the caller for a write in place; page 0 is scratch and takes the padding's K and V.
    layer: index into its layers, static or traced.
    short_rows: how many rows, from the first, are short, i.e. hold at most short_len tokens; they are packed with
    the query group. The Python int R says that every row is short, and the long path is not traced.
    scale multiplies the scores. window: keys a token sees, itself included. soft_cap: scores become
    cap * tanh(score / cap). sinks: [Hq], a score a head that takes part in the softmax and adds nothing.
    kv_scale: (k, v), what values of quantised pages are multiplied by. block_sizes: by default the platform's.

    Returns (out [T, Hq, Dv] in q's type, zero for tokens of no row; kv_pages). Softmax and sums are in float32. What
    pages hold beyond a row's last token, or behind its window, never reaches the result, NaN included.
    Raises ValueError for an unknown backend or shapes that do not fit each other.
    """
    _check(q, k, v, kv_pages, rows, short_rows, short_len, backend, layout)
    k_scale, v_scale = kv_scale or (None, None)
    places = token_places(rows, q.shape[0], layout.page_size(kv_pages))
    k, v = quantise(k, k_scale, kv_pages.dtype), quantise(v, v_scale, kv_pages.dtype)
    kv_pages = write_kv(kv_pages, layer, k, v, places, layout)
    scoring = Scoring(scale, window, soft_cap, sinks, k_scale, v_scale)
    sizes = block_sizes or default_block_sizes()
    per_tile = -(-sizes.keys // layout.page_size(kv_pages))
    pages = Pages(kv_pages, layout, layer, rows.page_table, per_tile, k.shape[-1], v.shape[-1])
    return attend_pages(q, pages, rows, short_rows, short_len, scoring, sizes)


def _check(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_pages: jax.Array,
    rows: RaggedRows,
    short_rows: int | jax.Array,
    short_len: int,
    backend: str,
    layout: KVLayout,
) -> None:
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is unknown; known are {', '.join(BACKENDS)}")
    if layout is KVLayout.LATENT:
        raise ValueError("layout latent has one row for all heads: ragged_latent_attention reads it")
    if q.ndim != 3 or k.ndim != 3 or v.ndim != 3 or k.shape[:2] != v.shape[:2] or k.shape[0] != q.shape[0]:
        raise ValueError(f"q, k and v must be [T, heads, D], not {q.shape}, {k.shape} and {v.shape}")
    if q.shape[2] != k.shape[2] or q.shape[1] % k.shape[1]:
        raise ValueError(f"q must be [T, a multiple of {k.shape[1]}, {k.shape[2]}], not {q.shape}")
    check_pages(kv_pages, layout, k.shape[1], k.shape[2], v.shape[2])
    if short_len < 1:
        raise ValueError(f"short_len must be at least 1, not {short_len}")
    count = rows.page_table.shape[0]
    if isinstance(short_rows, int) and not 0 <= short_rows <= count:
        raise ValueError(f"short_rows must be 0 to {count}, not {short_rows}")


def check_pages(kv_pages: jax.Array, layout: KVLayout, kv_heads: int, key_dim: int, value_dim: int) -> None:
    """Raises ValueError for an array that is none of `layout` for such keys and values."""
    rank = len(layout.axes)
    if kv_pages.ndim == rank:
        layers, pages, size = kv_pages.shape[0], kv_pages.shape[layout.page_axis], layout.page_size(kv_pages)
        wanted = layout.shape(
            layers=layers, pages=pages, page_size=size, kv_heads=kv_heads, key_dim=key_dim, value_dim=value_dim
        )
        if kv_pages.shape == wanted:
            return
        raise ValueError(f"kv_pages in layout {layout} must be {wanted}, not {kv_pages.shape}")
    raise ValueError(f"kv_pages in layout {layout} must have {rank} axes, not {kv_pages.ndim}")
