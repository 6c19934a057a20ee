"""Rows sorted by group, cut into items of one group each."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

ALIGNED = 8
"""Rows of which a tile's first is a multiple: shared memory is made of tiles of 8 rows, which TMA fills whole."""


class GroupItems(NamedTuple):
    """Items of work: those with rows of groups, then those with rows of no group.

    ends: [2] int32, how many items of groups there are, and how many in all; entries behind them mean nothing.
    group, row: [W] int32, the item's group, and the first row of its tile, a multiple of 8.
    low, high: [W] int32, the item's own rows, counted from the tile's first.
    """

    ends: jax.Array
    group: jax.Array
    row: jax.Array
    low: jax.Array
    high: jax.Array


def with_room(x: jax.Array, tile_rows: int) -> jax.Array:
    """x [rows, K] with zeros behind its rows: a multiple of 8 rows, and at least the `tile_rows` that a tile reads."""
    rows = x.shape[0]
    return jnp.pad(x, ((0, max(-(-rows // ALIGNED) * ALIGNED, tile_rows) - rows), (0, 0)))


def group_items(group_sizes: jax.Array, rows: int, held: int, tile_rows: int) -> GroupItems:
    """The items of `rows` rows in tiles of `tile_rows`; empty groups have none.

    Tiles begin at the last multiple of 8 before a group's first row, not at multiples of their size as those of
    `group_tiles` do: a group of few rows mostly has one item, and its weights are read once.

    group_sizes: [E] int32; what their sum exceeds `rows` by is cut off, and what it lacks is of no group. held: rows
    that may be read, those of `with_room`; tile_rows: a multiple of 8.
    """
    ends = jnp.append(jnp.minimum(jnp.cumsum(group_sizes.astype(jnp.int32)), rows), rows)
    starts = jnp.concatenate([jnp.zeros(1, jnp.int32), ends[:-1]])
    begins = starts // ALIGNED * ALIGNED
    items = jnp.where(ends > starts, -(-(ends - begins) // tile_rows), 0)
    item_ends = jnp.cumsum(items)
    index = jnp.arange(_most_items(rows, ends.shape[0], tile_rows), dtype=jnp.int32)
    group = jnp.searchsorted(item_ends, index, side="right", method="compare_all")
    group = jnp.minimum(group, ends.shape[0] - 1).astype(jnp.int32)
    first = begins[group] + (index - (item_ends - items)[group]) * tile_rows
    # Near the end a tile begins earlier, so that none reaches behind the last row that may be read.
    row = jnp.clip(first, 0, held - tile_rows)
    low, high = jnp.maximum(first, starts[group]), jnp.minimum(first + tile_rows, ends[group])
    return GroupItems(item_ends[-2:], group, row, low - row, high - row)


def _most_items(rows: int, groups: int, tile_rows: int) -> int:
    """A group of s rows has at most (s + 7 + tile_rows - 1) // tile_rows items, and one of a row has one."""
    busy = min(groups, rows)
    return (rows + busy * (ALIGNED - 1 + tile_rows - 1)) // tile_rows
