"""Work items of the GPU attention kernel: pieces of the keys of query blocks, one a program and KV head."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer_kernels.rows import QueryBlocks, key_range

ROW, START, OFFSET, COUNT, FIRST_TILE, END_TILE, PART = range(7)
"""Columns of the items. COUNT is 0 for an item that is not in use; PART is -1 where the block is not cut."""

MERGE_OFFSET, MERGE_COUNT, MERGE_PART, MERGE_PARTS = range(4)
"""Columns of the merges. MERGE_PARTS is 0 for a merge that is not in use."""


class WorkItems(NamedTuple):
    """items: [N, 7] int32, the tiles of keys that one program attends, for a block of queries.

    merges: [M, 4] int32, blocks whose keys are cut: its tokens, its first part, and how many it has.
    parts: how many parts there can be.
    """

    items: jax.Array
    merges: jax.Array
    parts: int


def query_blocks(blocks: QueryBlocks, most: int, size: int) -> QueryBlocks:
    """Blocks of at most `most` tokens, cut into blocks of at most `size`."""
    pieces = -(-most // size)
    if pieces == 1:
        return blocks
    done = jnp.arange(pieces, dtype=jnp.int32) * size
    count = jnp.clip(blocks.count[:, None] - done, 0, size)
    row = jnp.broadcast_to(blocks.row[:, None], count.shape)
    parts = (row, blocks.start[:, None] + done, blocks.offset[:, None] + done, count)
    return QueryBlocks(*(part.reshape(-1) for part in parts))


def work_items(blocks: QueryBlocks, window: int | None, keys: int, heads: int, programs: int, least: int) -> WorkItems:
    """Cuts the keys of blocks so that about `programs` programs, over all KV heads, have as much to do each.

    keys: keys a tile. least: tiles below which a block is not cut further.

    A piece has at least total / programs tiles; so there are at most programs / heads more items than blocks, and at
    most twice as many parts of cut blocks.
    """
    first, end = key_range(blocks, window)
    first_tile = first // keys
    tiles = jnp.where(blocks.count > 0, -(-end // keys) - first_tile, 0)
    chunk = jnp.maximum(-(-tiles.sum() * heads // programs), least)
    pieces = -(-tiles // chunk)
    extra, total = -(-programs // heads), blocks.count.shape[0]
    block, piece, used = _expanded(pieces, total + extra)
    cut = jnp.where(pieces > 1, pieces, 0)
    before = jnp.cumsum(cut) - cut
    share = [first_tile[block] + (piece + i) * tiles[block] // jnp.maximum(pieces[block], 1) for i in (0, 1)]
    count = jnp.where(used, blocks.count[block], 0)
    part = jnp.where(cut[block] > 0, before[block] + piece, -1)
    items = jnp.stack([blocks.row[block], blocks.start[block], blocks.offset[block], count, *share, part], axis=1)
    block, _, used = _expanded((pieces > 1).astype(jnp.int32), min(total, extra))
    parts = jnp.where(used, cut[block], 0)
    merges = jnp.stack([blocks.offset[block], blocks.count[block], before[block], parts], axis=1)
    return WorkItems(items.astype(jnp.int32), merges.astype(jnp.int32), 2 * extra)


def _expanded(repeats: jax.Array, total: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`total` places: which of `repeats` each is for, its number among that one's, and whether it is in use."""
    ends = jnp.cumsum(repeats)
    place = jnp.arange(total, dtype=jnp.int32)
    source = jnp.searchsorted(ends, place, side="right", method="compare_all").astype(jnp.int32)
    used = source < repeats.shape[0]
    source = jnp.where(used, source, 0)
    return source, place - (ends - repeats)[source], used
