"""Ragged attention over paged KV: the one signature behind which all backends stand."""

import jax

from jaxinfer_kernels.blocks import BlockSizes, default_block_sizes
from jaxinfer_kernels.pages import quantise, write_kv
from jaxinfer_kernels.rows import RaggedRows, token_places
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
    block_sizes: BlockSizes | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Writes k and v into the pages, then attends causally from each token over its row's keys.

    q: [T, Hq, D]; query head h reads KV head h // (Hq // Hkv). k, v: [T, Hkv, D]. kv_pages:
    [L, 2, N, page, Hkv, D], donated by the caller for a write in place; page 0 is scratch and takes the padding's
    K and V. layer: index into L, static or traced.
    short_rows: how many rows, from the first, are short, i.e. hold at most short_len tokens; they are packed with
    the query group. The Python int R says that every row is short, and the long path is not traced.
    scale multiplies the scores. window: keys a token sees, itself included. soft_cap: scores become
    cap * tanh(score / cap). sinks: [Hq], a score a head that takes part in the softmax and adds nothing.
    kv_scale: (k, v), what values of quantised pages are multiplied by. block_sizes: by default the platform's.

    Returns (out [T, Hq, D] in q's type, zero for tokens of no row; kv_pages). Softmax and sums are in float32. What
    pages hold beyond a row's last token, or behind its window, never reaches the result, NaN included.
    Raises ValueError for an unknown backend or shapes that do not fit each other.
    """
    _check(q, k, v, kv_pages, rows, short_rows, short_len, backend)
    tokens, page_size = q.shape[0], kv_pages.shape[3]
    k_scale, v_scale = kv_scale or (None, None)
    places = token_places(rows, tokens, page_size)
    k, v = quantise(k, k_scale, kv_pages.dtype), quantise(v, v_scale, kv_pages.dtype)
    kv_pages = write_kv(kv_pages, layer, k, v, places)
    scoring = Scoring(scale, window, soft_cap, sinks, k_scale, v_scale)
    sizes = block_sizes or default_block_sizes()
    out, kv_pages = attend_pages(q, kv_pages, layer, rows, short_rows, short_len, scoring, sizes)
    return out, kv_pages


def _check(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_pages: jax.Array,
    rows: RaggedRows,
    short_rows: int | jax.Array,
    short_len: int,
    backend: str,
) -> None:
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is unknown; known are {', '.join(BACKENDS)}")
    if kv_pages.ndim != 6 or kv_pages.shape[1] != 2:
        raise ValueError(f"kv_pages must be [layers, 2, pages, page, Hkv, D], not {kv_pages.shape}")
    heads, dim = kv_pages.shape[4:]
    if k.shape != (q.shape[0], heads, dim) or v.shape != k.shape:
        raise ValueError(f"k and v must be {(q.shape[0], heads, dim)}, not {k.shape} and {v.shape}")
    if q.ndim != 3 or q.shape[2] != dim or q.shape[1] % heads:
        raise ValueError(f"q must be [T, a multiple of {heads}, {dim}], not {q.shape}")
    if short_len < 1:
        raise ValueError(f"short_len must be at least 1, not {short_len}")
    count = rows.page_table.shape[0]
    if isinstance(short_rows, int) and not 0 <= short_rows <= count:
        raise ValueError(f"short_rows must be 0 to {count}, not {short_rows}")
