"""Static parameters of a GPU attention program, and the places where it finds its inputs."""

import math
from typing import Any, NamedTuple

import jax
from jax import lax

from jaxinfer_kernels.gpu import work_items as item

ROWS = 64
"""Rows of a warpgroup's tile of queries: what one wgmma takes."""

LOWEST = -1e30
"""Highest score of no keys: finite, so that differences of it are."""

LOG2E = math.log2(math.e)


class Form(NamedTuple):
    """Static parameters that a program is compiled for.

    group: query heads a KV head. key_dim, value_dim, width: sizes of a key, of a value, and of the space for either in
    a page. page: tokens a page. pages: pages of a layer's keys. keys: keys a tile. stages: tiles in shared memory at
    once. tokens: most tokens of a warpgroup; tokens * group is at most 64. warpgroups: warpgroups that compute. narrow:
    pages have 8 bits a value. in_place: products with values are accumulated in the sums, not by an addition that
    follows.
    """

    group: int
    key_dim: int
    value_dim: int
    width: int
    page: int
    pages: int
    keys: int
    stages: int
    tokens: int
    warpgroups: int
    narrow: bool
    window: int | None
    soft_cap: float | None
    sinks: bool
    in_place: bool

    @property
    def run(self) -> int:
        """Keys that one copy brings: a page, or as much of it as a tile takes."""
        return min(self.page, self.keys)

    @property
    def value_columns(self) -> int:
        """Columns of a value that one product gives; registers hold it beside the sum of all."""
        return self.value_dim if self.value_dim == self.key_dim <= 128 else 64

    @property
    def part_width(self) -> int:
        """Columns of a value among the parts, so that each thread of the merging kernel has as many."""
        return -(-self.value_dim // 128) * 128


class Arrays(NamedTuple):
    """Global memory. q: [T, Hkv, G, Dk]. kv: [L * 2 * N, page, Hkv * D]. table: [R, P]. items: [N, 7].

    layer: [1]. numbers: [2], what scores and results are multiplied by. sinks: [Hkv, 64], of a tile's rows. out:
    [T, Hkv, G, Dv]. parts: [parts, Hkv, 64, W] float32, W of `part_width`. stats: [parts, Hkv, 2, 64], highest score
    and sum of weights.
    """

    q: Any
    kv: Any
    table: Any
    items: Any
    layer: Any
    numbers: Any
    sinks: Any
    out: Any
    parts: Any
    stats: Any


class Memory(NamedTuple):
    """Shared memory. q: [warpgroups, 64, Dk]. k, v: [stages, keys, D] as the pages have them. weights: [warpgroups, 64,
    keys]. flat, results: [warpgroups, 64, D], rows of queries and of results as in global memory; one where sizes
    allow it.
    wide_k, wide_v: [keys, D] in q's type, where pages are narrow. q_here, k_here, v_here: barriers of copies.
    k_done, v_done: of warpgroups that have read a stage. v_clean: of those that have zeroed their part of a tile.
    """

    q: Any
    k: Any
    v: Any
    weights: Any
    flat: Any
    results: Any
    wide_k: Any
    wide_v: Any
    q_here: Any
    k_here: Any
    v_here: Any
    k_done: Any
    v_done: Any
    v_clean: Any


class Work(NamedTuple):
    """Work of one program: its item, the KV head, the number of tiles, and the layer and the factor of scores that each
    tile needs.
    """

    row: jax.Array
    start: jax.Array
    offset: jax.Array
    count: jax.Array
    first_tile: jax.Array
    tiles: jax.Array
    part: jax.Array
    head: jax.Array
    layer: jax.Array
    factor: jax.Array


def read_work(refs: Arrays) -> Work:
    """The work of this program."""
    number, head = lax.axis_index("item"), lax.axis_index("head")
    columns = (item.ROW, item.START, item.OFFSET, item.COUNT, item.FIRST_TILE, item.END_TILE, item.PART)
    row, start, offset, count, first, end, part = (refs.items[number, column] for column in columns)
    return Work(row, start, offset, count, first, end - first, part, head, refs.layer[0], refs.numbers[0])
