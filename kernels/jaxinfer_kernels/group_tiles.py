"""Rows sorted by group, cut into tiles: which (tile, group) pairs there is work for."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class GroupTiles(NamedTuple):
    """Items of work in the order of rows; an item is what one group holds of one row tile.

    busy: [] int32, how many items hold rows. count: [] int32, those and one item for each tile that holds no row of
    any group; entries from there on mean nothing.
    group, tile: [W] int32. low, high: [W] int32, the rows of the item, counted from the tile's first row; equal where
    the item holds none. Items of one tile stand next to each other, and so do items of one group.
    """

    busy: jax.Array
    count: jax.Array
    group: jax.Array
    tile: jax.Array
    low: jax.Array
    high: jax.Array


def group_tiles(group_sizes: jax.Array, rows: int, tile_rows: int) -> GroupTiles:
    """The items of `rows` rows in tiles of `tile_rows`; empty groups have none.

    group_sizes: [E] int32; what their sum exceeds `rows` by is cut off. W is tiles + min(E, rows) - 1: beyond the
    first, each group that holds rows adds one item at most to those of the tiles.
    """
    ends = jnp.minimum(jnp.cumsum(group_sizes.astype(jnp.int32)), rows)
    starts = jnp.concatenate([jnp.zeros(1, jnp.int32), ends[:-1]])
    first = starts // tile_rows
    touched = jnp.where(ends > starts, (ends - 1) // tile_rows - first + 1, 0)
    item_ends = jnp.cumsum(touched)
    tiles = -(-rows // tile_rows)
    index = jnp.arange(tiles + min(group_sizes.shape[0], rows) - 1, dtype=jnp.int32)
    busy = item_ends[-1]
    # Idle items repeat the last group: a kernel that reads weights by group then reads none for them.
    group = jnp.searchsorted(item_ends, jnp.minimum(index, busy - 1), side="right", method="compare_all")
    group = jnp.minimum(group, group_sizes.shape[0] - 1).astype(jnp.int32)
    covered = -(-ends[-1] // tile_rows)
    idle = index >= busy
    tile = jnp.where(idle, covered + index - busy, first[group] + index - (item_ends - touched)[group])
    origin = tile * tile_rows
    low = jnp.where(idle, 0, jnp.clip(starts[group] - origin, 0, tile_rows))
    high = jnp.where(idle, 0, jnp.clip(ends[group] - origin, 0, tile_rows))
    return GroupTiles(busy, busy + tiles - covered, group, tile, low, high)
