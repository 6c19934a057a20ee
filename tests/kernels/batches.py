"""Random ragged batches over pages that hold NaN wherever nothing was written."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxinfer_kernels import KVLayout, RaggedRows
from jaxinfer_kernels.layouts import heads_rows, heads_width, value_lanes

MIXES = {
    "decode": [(5, 1), (0, 1), (31, 1), (7, 1), (16, 1), (15, 1)],
    "empty_rows": [(0, 0), (9, 1), (0, 0), (0, 5), (0, 0)],
    "mixed": [(3, 1), (40, 1), (0, 17), (12, 9), (16, 4), (0, 0)],
    "page_edges": [(15, 1), (16, 1), (31, 5), (32, 4), (0, 16), (0, 32), (16, 33)],
    "one_long_among_short": [(190, 1), (1, 1), (2, 1), (60, 33)],
    "prefill": [(0, 70)],
    "short_long_rows_over_page_edges": [(15, 2), (31, 2), (15, 2), (47, 3)],
    "short_of_three": [(2, 3), (14, 3), (15, 2), (31, 3), (6, 20)],
}
"""Rows (cached tokens, new tokens) that every backend is tested with."""


class Shape(NamedTuple):
    """Heads, page and layer sizes of a batch."""

    q_heads: int = 4
    kv_heads: int = 2
    dim: int = 8
    page: int = 4
    layers: int = 2
    value_dim: int | None = None


class Batch(NamedTuple):
    """Arguments of one attention call; kv_pages holds the cached prefixes and NaN elsewhere."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    kv_pages: np.ndarray
    rows: RaggedRows
    short_rows: int


def make_batch(
    rng: np.random.Generator,
    lengths: list[tuple[int, int]],
    shape: Shape,
    *,
    layer: int,
    short_len: int,
    tokens: int | None = None,
    window: int | None = None,
    longest: int | None = None,
) -> Batch:
    """A batch of rows (cached tokens, new tokens), short ones first; table entries behind the window are garbage.

    tokens, longest: tokens of the step, and of the longest row; where they are given, arrays have the same shapes
    whatever the lengths are.
    """
    lengths = sorted(lengths, key=lambda x: x[1] > short_len)
    used = sum(count for _, count in lengths)
    total = tokens or used + 3
    needs = [-(-(start + count) // shape.page) for start, count in lengths]
    width = (max(needs) if longest is None else -(-longest // shape.page)) + 2
    num_pages = 2 + (sum(needs) if longest is None else (width - 2) * len(lengths))
    kv_pages = np.full((shape.layers, 2, num_pages, shape.page, shape.kv_heads, shape.dim), np.nan, np.float32)
    free = list(rng.permutation(np.arange(1, num_pages)))
    table = np.zeros((len(lengths), width), np.int32)
    for row, (start, count) in enumerate(lengths):
        pages = -(-(start + count) // shape.page)
        table[row, :pages] = [free.pop() for _ in range(pages)]
        for p in range(start):
            kv_pages[layer, :, table[row, p // shape.page], p % shape.page] = rng.standard_normal(
                (2, shape.kv_heads, shape.dim)
            )
        if window is not None and start:
            # The page that was free all along holds NaN: a read behind the window would show.
            table[row, : max(0, start - window + 1) // shape.page] = rng.choice([0, free[0]])
    counts = np.array([count for _, count in lengths], np.int32)
    offsets = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int32)
    starts = np.array([start for start, _ in lengths], np.int32)
    new = rng.standard_normal((total, shape.q_heads + 2 * shape.kv_heads, shape.dim)).astype(np.float32)
    q, k, v = np.split(new, [shape.q_heads, shape.q_heads + shape.kv_heads], axis=1)
    v = v[..., : shape.value_dim]
    short_rows = sum(count <= short_len for count in counts)
    rows = RaggedRows(*map(jnp.asarray, (table, starts, offsets, counts)))
    return Batch(q, k, v, kv_pages, rows, short_rows)


def in_layout(layout: KVLayout, kv_pages: np.ndarray, value_dim: int) -> np.ndarray:
    """kv_pages of the TOKENS layout in another one: lanes beyond a key or a value hold 0, or NaN where nothing is."""
    if layout is KVLayout.TOKENS:
        return kv_pages
    k, v = kv_pages[:, 0], kv_pages[:, 1, ..., :value_dim]
    rows = np.asarray(heads_rows(jnp.asarray(k), jnp.asarray(v), *heads_width(k.shape[-1], value_dim)))
    empty = np.isnan(k[..., :1, :1])[..., None]
    return np.moveaxis(np.where(empty, np.nan, rows), 2, 4)


def from_layout(layout: KVLayout, kv_pages: np.ndarray, key_dim: int, value_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """K and V, [L, N, page, Hkv, D], of pages in any layout."""
    if layout is KVLayout.TOKENS:
        return kv_pages[:, 0, ..., :key_dim], kv_pages[:, 1, ..., :value_dim]
    rows = np.moveaxis(kv_pages, 4, 2)
    return rows[:, :, :, 0, :, :key_dim], rows[:, :, :, -1, :, slice(*value_lanes(key_dim, value_dim))]
