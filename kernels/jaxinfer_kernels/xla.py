"""The `xla` backend: plain JAX, tiles of keys with an online softmax, trip counts that follow the pages in use."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer_kernels.blocks import BlockSizes
from jaxinfer_kernels.rows import QueryBlocks, RaggedRows, key_range, split_rows
from jaxinfer_kernels.scoring import Scoring
from jaxinfer_kernels.tiles import Pages


class Tiles(NamedTuple):
    """Tiles of keys that are added at once; the first axis of each is over them.

    block: of which block's keys it is. q: [N, Q, Hkv, G, Dk] and position: [N, Q], the block's. page_ids:
    [N, per_tile]. key: [N, keys], positions. held: [N, keys], False for a key that no token of the block sees.
    """

    block: jax.Array
    q: jax.Array
    position: jax.Array
    page_ids: jax.Array
    key: jax.Array
    held: jax.Array


class Sums(NamedTuple):
    """The state of an online softmax, float32: highest score and sum of weights [B, Hkv, Q, G], and weighted V."""

    highest: jax.Array
    weight: jax.Array
    value: jax.Array


def attend_pages(
    q: jax.Array,
    pages: Pages,
    rows: RaggedRows,
    short_rows: int | jax.Array,
    short_len: int,
    scoring: Scoring,
    sizes: BlockSizes,
) -> tuple[jax.Array, jax.Array]:
    """Attention of q, [T, Hq, Dk], over pages that hold all keys already.

    Returns (out [T, Hq, Dv], zero for tokens of no row; the array of pages, to which later writes must go).
    """
    short, long = split_rows(rows, short_rows, q.shape[0], sizes.query_tokens)
    out = jnp.zeros((*q.shape[:2], pages.value_dim), q.dtype)
    if short is not None:
        batch = min(sizes.short_tiles, rows.count.shape[0])
        out, pages = _attend(out, q, short, short_len, batch, pages, scoring)
    if long is not None:
        out, pages = _attend_some(out, q, long, sizes, pages, scoring)
    return out, pages.array


def _attend_some(
    out: jax.Array, q: jax.Array, blocks: QueryBlocks, sizes: BlockSizes, pages: Pages, scoring: Scoring
) -> tuple[jax.Array, Pages]:
    """Attends `sizes.query_blocks` blocks after another: their sums, in float32, are kept all the while."""
    batch = sizes.query_blocks
    blocks = QueryBlocks(*(jnp.pad(x, (0, -len(x) % batch)) for x in blocks))

    def step(index: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        out, array = state
        part = QueryBlocks(*(jax.lax.dynamic_slice_in_dim(x, index * batch, batch) for x in blocks))
        out, through = _attend(out, q, part, sizes.query_tokens, batch, pages.through_loop(array), scoring)
        return out, through.array

    used = jnp.sum(blocks.count > 0)
    out, array = jax.lax.fori_loop(0, -(-used // batch), step, (out, pages.array))
    return out, pages._replace(array=array)


def _attend(
    out: jax.Array, q: jax.Array, blocks: QueryBlocks, width: int, batch: int, pages: Pages, scoring: Scoring
) -> tuple[jax.Array, Pages]:
    """Attends blocks of at most `width` tokens, `batch` tiles at a time, and puts results into `out`, [T, Hq, Dv]."""
    step = jnp.arange(width, dtype=jnp.int32)
    token = blocks.offset[:, None] + step
    real = step < blocks.count[:, None]
    packed = q[jnp.where(real, token, 0)].reshape(*token.shape, pages.heads, -1, pages.key_dim)
    position = jnp.where(real, blocks.start[:, None] + step, -1)
    sums, pages = _sum_tiles(packed, position, blocks, batch, pages, scoring)
    weight = jnp.where(sums.weight > 0, sums.weight, 1)
    result = sums.value / weight[..., None]
    if scoring.v_scale is not None:
        result = result * scoring.v_scale
    result = jnp.moveaxis(result, 1, 2).reshape(*token.shape, *out.shape[1:]).astype(q.dtype)
    return out.at[jnp.where(real, token, q.shape[0])].set(result, mode="drop"), pages


def _sum_tiles(
    q: jax.Array, position: jax.Array, blocks: QueryBlocks, batch: int, pages: Pages, scoring: Scoring
) -> tuple[Sums, Pages]:
    """Online softmax of q, [B, Q, Hkv, G, Dk] at positions [B, Q], over the tiles that the blocks need.

    The tiles of all blocks stand in one line, of which `batch` are taken at a time, whosever they are: a block with
    many keys lengthens the line by as many tiles as it has, and no other block waits for it.
    """
    first, end = key_range(blocks, scoring.window)
    size = pages.keys_per_tile
    first_tile = first // size
    tiles = jnp.where(blocks.count > 0, -(-end // size) - first_tile, 0)
    line = jnp.cumsum(tiles)

    def step(index: jax.Array, state: tuple[Sums, jax.Array]) -> tuple[Sums, jax.Array]:
        sums, array = state
        through = pages.through_loop(array)
        place = index * batch + jnp.arange(batch, dtype=jnp.int32)
        used = place < line[-1]
        block = jnp.where(used, jnp.searchsorted(line, place, side="right", method="compare_all"), 0)
        tile = (first_tile[block] + place - (line - tiles)[block])[:, None]
        entry = tile * pages.per_tile + jnp.arange(pages.per_tile)
        page_ids = pages.table.at[blocks.row[block][:, None], entry].get(mode="clip")
        key = tile * size + jnp.arange(size)
        held = used[:, None] & (key >= first[block][:, None]) & (key < end[block][:, None])
        added = Tiles(block, q[block], position[block], page_ids, key, held)
        return _add_tiles(sums, added, through, scoring), through.array

    begin = _no_sums(q, pages.value_dim, scoring.sinks)
    sums, array = jax.lax.fori_loop(0, -(-line[-1] // batch), step, (begin, pages.array))
    return sums, pages._replace(array=array)


def _no_sums(q: jax.Array, value_dim: int, sinks: jax.Array | None) -> Sums:
    blocks, width, heads, group, _ = q.shape
    shape = (blocks, heads, width, group)
    value = jnp.zeros((*shape, value_dim), jnp.float32)
    if sinks is None:
        return Sums(jnp.full(shape, -jnp.inf), jnp.zeros(shape, jnp.float32), value)
    sink = sinks.astype(jnp.float32).reshape(1, heads, 1, group)
    return Sums(jnp.broadcast_to(sink, shape), jnp.ones(shape, jnp.float32), value)


def _add_tiles(sums: Sums, tiles: Tiles, pages: Pages, scoring: Scoring) -> Sums:
    dtype = tiles.q.dtype
    precision = jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None
    k, v = pages.read(tiles.page_ids, dtype)
    scores = jnp.einsum("bqhgd,bhsd->bhqgs", tiles.q, k, precision=precision, preferred_element_type=jnp.float32)
    seen = tiles.held[:, None] & (tiles.key[:, None] <= tiles.position[..., None])
    if scoring.window is not None:
        seen &= tiles.key[:, None] > tiles.position[..., None] - scoring.window
    # NOTE: scores and V are selected, never multiplied by zero: what lies outside may be NaN.
    scores = jnp.where(seen[:, None, :, None], _scored(scores, scoring), -jnp.inf)
    v = jnp.where(tiles.held[:, None, :, None], v, 0)
    highest = _joined_by(jnp.maximum, sums.highest, tiles.block, scores.max(axis=-1))
    shift = jnp.where(highest == -jnp.inf, 0.0, highest)
    weights = jnp.exp(scores - _of(shift, tiles.block)[..., None])
    keep = jnp.exp(sums.highest - shift)
    value = jnp.einsum(
        "bhqgs,bhsd->bhqgd", weights.astype(dtype), v, precision=precision, preferred_element_type=jnp.float32
    )
    weight = _joined_by(jnp.add, sums.weight * keep, tiles.block, weights.sum(axis=-1))
    return Sums(highest, weight, _joined_by(jnp.add, sums.value * keep[..., None], tiles.block, value))


def _of(state: jax.Array, block: jax.Array) -> jax.Array:
    """Return the state of each tile's block. A single block needs no gather."""
    return state if state.shape[0] == 1 == block.shape[0] else state[block]


def _joined_by(
    join: Callable[[jax.Array, jax.Array], jax.Array], state: jax.Array, block: jax.Array, parts: jax.Array
) -> jax.Array:
    """`state` with each tile's part joined to its block's; several tiles may be of one block."""
    if state.shape[0] == 1 == block.shape[0]:
        return join(state, parts)
    return state.at[block].max(parts) if join is jnp.maximum else state.at[block].add(parts)


def _scored(products: jax.Array, scoring: Scoring) -> jax.Array:
    scale = scoring.scale if scoring.k_scale is None else scoring.scale * scoring.k_scale
    scores = products * scale
    if scoring.soft_cap is None:
        return scores
    return scoring.soft_cap * jnp.tanh(scores / scoring.soft_cap)
