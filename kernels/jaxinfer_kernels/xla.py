"""The `xla` backend: plain JAX, tiles of keys with an online softmax, trip counts that follow the pages in use."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer_kernels.blocks import BlockSizes
from jaxinfer_kernels.rows import RaggedRows


class Scoring(NamedTuple):
    """How scores are made from q and k; see `ragged_paged_attention`."""

    scale: float
    window: int | None
    soft_cap: float | None
    sinks: jax.Array | None
    k_scale: jax.Array | float | None
    v_scale: jax.Array | float | None


class Pages(NamedTuple):
    """The keys and values of one layer: [L, 2, N, page, Hkv, D], an index into L, and how many pages a tile takes.

    NOTE: the array is part of the state of every loop below, though no loop writes it. Where a loop only reads it and
    the next layer writes what went into the loop, not what came out of it, XLA copies all pages in every layer.
    """

    array: jax.Array
    layer: jax.Array | int
    per_tile: int

    @property
    def keys_per_tile(self) -> int:
        """Keys in one tile."""
        return self.per_tile * self.array.shape[3]

    def through_loop(self, array: jax.Array) -> "Pages":
        """The pages over a loop's state; JAX must not see that the loop passes it on unchanged."""
        return self._replace(array=jax.lax.optimization_barrier(array))

    def read(self, side: int, page_ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
        """K (side 0) or V (1) of pages [B, per_tile], as [B, Hkv, keys, D].

        NOTE: gathered head by head. Batches of products want heads before keys, and XLA on CPU writes the swapped copy
        of a gathered tile so slowly that it took a third of a decode step.
        """
        heads = jnp.arange(self.array.shape[4])
        pages = self.array[self.layer, side, page_ids[:, None], :, heads[:, None]]
        return pages.reshape(*pages.shape[:2], -1, pages.shape[-1]).astype(dtype)


class Sums(NamedTuple):
    """The state of an online softmax, float32: highest score and sum of weights [B, Hkv, Q, G], and weighted V."""

    highest: jax.Array
    weight: jax.Array
    value: jax.Array


def attend_pages(
    q: jax.Array,
    kv_pages: jax.Array,
    layer: jax.Array | int,
    rows: RaggedRows,
    short_rows: int | jax.Array,
    short_len: int,
    scoring: Scoring,
    sizes: BlockSizes,
) -> tuple[jax.Array, jax.Array]:
    """Attention of q, [T, Hq, D], over pages that hold all keys already.

    Returns (out [T, Hq, D], zero for tokens of no row; kv_pages, to which later writes must go).
    """
    total = rows.count.shape[0]
    is_short = jnp.arange(total) < short_rows
    pages = Pages(kv_pages, layer, -(-sizes.keys // kv_pages.shape[3]))
    out = jnp.zeros_like(q)
    if not (isinstance(short_rows, int) and short_rows == 0):
        short = _masked(rows, is_short)
        out, pages = _run(out, q, short, short_len, sizes.short_rows or total, pages, scoring)
    if not (isinstance(short_rows, int) and short_rows == total):
        blocks = _query_blocks(_masked(rows, ~is_short), q.shape[0], sizes.query_tokens)
        out, pages = _run(out, q, blocks, sizes.query_tokens, sizes.query_blocks, pages, scoring)
    return out, pages.array


def _masked(rows: RaggedRows, keep: jax.Array) -> RaggedRows:
    return rows._replace(count=jnp.where(keep, rows.count, 0))


def _query_blocks(rows: RaggedRows, tokens: int, size: int) -> RaggedRows:
    """Cuts rows into rows of at most `size` tokens; those in use come first."""
    blocks = -(-rows.count // size)
    ends = jnp.cumsum(blocks)
    index = jnp.arange(-(-tokens // size) + rows.count.shape[0], dtype=jnp.int32)
    row = jnp.searchsorted(ends, index, side="right", method="compare_all").astype(jnp.int32)
    used = row < rows.count.shape[0]
    row = jnp.where(used, row, 0)
    done = (index - (ends - blocks)[row]) * size
    count = jnp.where(used, jnp.clip(rows.count[row] - done, 0, size), 0)
    return RaggedRows(rows.page_table[row], rows.start[row] + done, rows.offset[row] + done, count)


def _key_range(rows: RaggedRows, window: int | None) -> tuple[jax.Array, jax.Array]:
    """First key that any token of a row sees, and the end of its keys: [R] each."""
    first = jnp.zeros_like(rows.start) if window is None else jnp.maximum(rows.start - window + 1, 0)
    return first, jnp.where(rows.count > 0, rows.start + rows.count, first)


def _run(
    out: jax.Array, q: jax.Array, rows: RaggedRows, width: int, batch: int, pages: Pages, scoring: Scoring
) -> tuple[jax.Array, Pages]:
    """Attends rows of at most `width` tokens, `batch` at a time, and puts the results into `out`, [T, Hq, D]."""
    total = rows.count.shape[0]
    if total <= batch:
        return _attend(out, q, rows, width, pages, scoring)
    if batch > 1:
        rows = _longest_first(rows, scoring.window)
    spare = -total % batch
    rows = RaggedRows(*(jnp.pad(x, [(0, spare)] + [(0, 0)] * (x.ndim - 1)) for x in rows))

    def step(index: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        out, array = state
        part = RaggedRows(*(jax.lax.dynamic_slice_in_dim(x, index * batch, batch) for x in rows))
        out, through = _attend(out, q, part, width, pages.through_loop(array), scoring)
        return out, through.array

    used = jnp.sum(rows.count > 0)
    out, array = jax.lax.fori_loop(0, -(-used // batch), step, (out, pages.array))
    return out, pages._replace(array=array)


def _longest_first(rows: RaggedRows, window: int | None) -> RaggedRows:
    """Rows by their number of keys, so that a batch holds rows of like length; empty rows are last."""
    first, end = _key_range(rows, window)
    order = jnp.argsort(first - end)
    return RaggedRows(*(x[order] for x in rows))


def _attend(
    out: jax.Array, q: jax.Array, rows: RaggedRows, width: int, pages: Pages, scoring: Scoring
) -> tuple[jax.Array, Pages]:
    heads, dim = pages.array.shape[4:]
    step = jnp.arange(width, dtype=jnp.int32)
    token = rows.offset[:, None] + step
    real = step < rows.count[:, None]
    packed = q[jnp.where(real, token, 0)].reshape(*token.shape, heads, -1, dim)
    position = jnp.where(real, rows.start[:, None] + step, -1)
    sums, pages = _sum_tiles(packed, position, rows, pages, scoring)
    weight = jnp.where(sums.weight > 0, sums.weight, 1)
    result = sums.value / weight[..., None]
    if scoring.v_scale is not None:
        result = result * scoring.v_scale
    result = jnp.moveaxis(result, 1, 2).reshape(*token.shape, *q.shape[1:]).astype(q.dtype)
    return out.at[jnp.where(real, token, q.shape[0])].set(result, mode="drop"), pages


def _sum_tiles(
    q: jax.Array, position: jax.Array, rows: RaggedRows, pages: Pages, scoring: Scoring
) -> tuple[Sums, Pages]:
    """Online softmax of q, [B, Q, Hkv, G, D] at positions [B, Q], over the tiles that any row of the batch needs."""
    first, end = _key_range(rows, scoring.window)
    size = pages.keys_per_tile
    first_tile = first // size
    tiles = jnp.max(-(-end // size) - first_tile, where=rows.count > 0, initial=0)

    def step(index: jax.Array, state: tuple[Sums, jax.Array]) -> tuple[Sums, jax.Array]:
        sums, array = state
        through = pages.through_loop(array)
        tile = (first_tile + index)[:, None]
        entry = tile * pages.per_tile + jnp.arange(pages.per_tile)
        page_ids = jnp.take_along_axis(rows.page_table, entry, axis=1, mode="clip")
        key = tile * size + jnp.arange(size)
        held = (key >= first[:, None]) & (key < end[:, None])
        return _add_tile(sums, q, position, through, page_ids, key, held, scoring), through.array

    sums, array = jax.lax.fori_loop(0, tiles, step, (_no_sums(q, scoring.sinks), pages.array))
    return sums, pages._replace(array=array)


def _no_sums(q: jax.Array, sinks: jax.Array | None) -> Sums:
    batch, width, heads, group, dim = q.shape
    shape = (batch, heads, width, group)
    value = jnp.zeros((*shape, dim), jnp.float32)
    if sinks is None:
        return Sums(jnp.full(shape, -jnp.inf), jnp.zeros(shape, jnp.float32), value)
    sink = sinks.astype(jnp.float32).reshape(1, heads, 1, group)
    return Sums(jnp.broadcast_to(sink, shape), jnp.ones(shape, jnp.float32), value)


def _add_tile(
    sums: Sums,
    q: jax.Array,
    position: jax.Array,
    pages: Pages,
    page_ids: jax.Array,
    key: jax.Array,
    held: jax.Array,
    scoring: Scoring,
) -> Sums:
    precision = jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
    k = pages.read(0, page_ids, q.dtype)
    scores = jnp.einsum("bqhgd,bhsd->bhqgs", q, k, precision=precision, preferred_element_type=jnp.float32)
    seen = held[:, None] & (key[:, None] <= position[..., None])
    if scoring.window is not None:
        seen &= key[:, None] > position[..., None] - scoring.window
    # NOTE: scores and V are selected, never multiplied by zero: what lies outside may be NaN.
    scores = jnp.where(seen[:, None, :, None], _scored(scores, scoring), -jnp.inf)
    v = jnp.where(held[:, None, :, None], pages.read(1, page_ids, q.dtype), 0)
    highest = jnp.maximum(sums.highest, scores.max(axis=-1))
    shift = jnp.where(highest == -jnp.inf, 0.0, highest)
    weights = jnp.exp(scores - shift[..., None])
    keep = jnp.exp(sums.highest - shift)
    added = jnp.einsum(
        "bhqgs,bhsd->bhqgd", weights.astype(q.dtype), v, precision=precision, preferred_element_type=jnp.float32
    )
    return Sums(highest, sums.weight * keep + weights.sum(axis=-1), sums.value * keep[..., None] + added)


def _scored(products: jax.Array, scoring: Scoring) -> jax.Array:
    scale = scoring.scale if scoring.k_scale is None else scoring.scale * scoring.k_scale
    scores = products * scale
    if scoring.soft_cap is None:
        return scores
    return scoring.soft_cap * jnp.tanh(scores / scoring.soft_cap)
