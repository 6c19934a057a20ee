"""The TPU attention kernel: one program walks blocks of queries and, of each, tiles of keys, with the next ones on
their way.

Copies and what waits for them, with two places for each kind:

    block   b            b + 1
    ids     start b+1 …  (the page ids of the next block, into SMEM)
    q       wait b, start b+1
    tiles   wait 0, start 1 | wait 1, start 2 | … | wait last, start tile 0 of b+1
    out     wait b-2, start b
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxinfer_kernels.tpu.attention_blocks import QUERY_STEP

ROW, START, OFFSET, COUNT = range(4)
"""Fields of a block in `Refs.blocks`, in the order of `rows.QueryBlocks`."""

_IDS, _Q, _NEW, _TILE, _OUT, _BACK = range(6)
_NEVER = -0.7 * float(jnp.finfo(jnp.float32).max)
"""The score of a key that is not seen: finite, so that no difference of two is NaN."""


class Form(NamedTuple):
    """What is known when the kernel is traced.

    queries: tokens a block holds; row m of its M rows is token m % queries of query head m // queries. packed: blocks
    lie along the first axis of q and out, [R, Hkv, M, W]; else along tokens, [Hkv, G, T, W], at multiples of 16.
    writes: blocks bring K and V of their tokens, which go into the pages. sub: rows of a page that are written at once.
    value: lanes of V in its row.
    """

    queries: int
    packed: bool
    writes: bool
    group: int
    page: int
    per_tile: int
    sub: int
    value: tuple[int, int]
    scale: float
    window: int | None
    soft_cap: float | None
    sinks: bool
    scaled: bool


class Refs(NamedTuple):
    """Arguments of the kernel, then its scratch memory; see `tpu.attention`.

    blocks: [4, B] int32. info: [2] int32, how many blocks there are, and the layer. floats: [2 + Hq] float32, scales of
    K and V and a sink a head. table: [R, 1, P]. kv: [L, N, S, Hkv, page, W]. new: [R, S, Hkv, Q, W] float32.
    """

    blocks: Any
    info: Any
    floats: Any
    table: Any
    q: Any
    new: Any
    kv: Any
    out: Any
    ids: Any
    q_place: Any
    new_place: Any
    back: Any
    tile: Any
    out_place: Any
    highest: Any
    weight: Any
    total: Any
    arrived: Any


class Span(NamedTuple):
    """The keys of a block: from `first` to `end`, in `tiles` tiles that begin with page `page`."""

    start: jax.Array
    first: jax.Array
    end: jax.Array
    page: jax.Array
    tiles: jax.Array


def attention_kernel(r: Refs, form: Form) -> None:
    """Attends the blocks of one core."""
    core, cores = pl.program_id(0), pl.num_programs(0)
    mine = jax.lax.div(r.info[0] - core + cores - 1, cores)

    @pl.when(mine > 0)
    def _() -> None:
        _ids_copy(r, core, 0).start()
        _ids_copy(r, core, 0).wait()
        _start_queries(r, form, core, 0)
        _each_page(r, form, core, 0, 0, 0, "start")

    def block(index: jax.Array, place: jax.Array) -> jax.Array:
        following = jnp.where(index + 1 < mine, core + (index + 1) * cores, -1)
        return _attend_block(r, form, core + index * cores, following, jax.lax.rem(index, 2), place, index >= 2)

    jax.lax.fori_loop(0, mine, block, jnp.int32(0))
    for back in (2, 1):

        @pl.when(mine >= back)
        def _(index: jax.Array = mine - back) -> None:
            _out_copies(r, form, core + index * cores, jax.lax.rem(index, 2), "wait")


def _attend_block(
    r: Refs, form: Form, item: jax.Array, following: jax.Array, side: jax.Array, place: jax.Array, waits: jax.Array
) -> jax.Array:
    """One block. side: which of two places it has. place: where its first tile arrives; returns that of the next."""
    span, cores = _span(r, form, item), pl.num_programs(0)
    more = following >= 0

    @pl.when(more)
    def _() -> None:
        _ids_copy(r, following, 1 - side).start()

    _queries_copy(r, form, item, side).wait()
    if form.writes:
        _new_copy(r, item, side).wait()

    @pl.when(more)
    def _() -> None:
        _start_queries(r, form, following, 1 - side)

    r.highest[...] = jnp.full_like(r.highest, _NEVER)
    r.weight[...] = jnp.zeros_like(r.weight)
    r.total[...] = jnp.zeros_like(r.total)

    def tile(index: jax.Array, place: jax.Array) -> jax.Array:
        last = index + 1 == span.tiles

        @pl.when(~last)
        def _() -> None:
            _each_page(r, form, item, index + 1, side, 1 - place, "start")

        @pl.when(last & more)
        def _() -> None:
            _ids_copy(r, following, 1 - side).wait()
            _each_page(r, form, following, 0, 1 - side, 1 - place, "start")

        _each_page(r, form, item, index, side, place, "wait")
        if form.writes:
            _each_group(r, form, item, index, side, place, span, "start")
        _clear_outside(r, form, index, place, span)
        _add_tile(r, form, index, side, place, span)
        return 1 - place

    place = jax.lax.fori_loop(0, span.tiles, tile, place)
    if form.writes:
        jax.lax.fori_loop(
            0,
            span.tiles,
            lambda index, _: _each_group(r, form, item, index, side, place, span, "wait"),
            None,
        )

    @pl.when(waits)
    def _() -> None:
        _out_copies(r, form, item - 2 * cores, side, "wait")

    _finish(r, form, side)
    _out_copies(r, form, item, side, "start")
    return place


def _span(r: Refs, form: Form, item: jax.Array) -> Span:
    start, count = r.blocks[START, item], r.blocks[COUNT, item]
    first = jnp.int32(0) if form.window is None else jnp.maximum(start - form.window + 1, 0)
    end = start + count
    page = first // form.page
    tiles = pl.cdiv(pl.cdiv(end, form.page) - page, form.per_tile)
    return Span(start, first, end, page, tiles)


def _ids_copy(r: Refs, item: jax.Array, side: jax.Array | int) -> Any:
    return pltpu.make_async_copy(r.table.at[r.blocks[ROW, item]], r.ids.at[side], r.arrived.at[_IDS, side])


def _queries_copy(r: Refs, form: Form, item: jax.Array, side: jax.Array | int) -> Any:
    offset = r.blocks[OFFSET, item]
    along = (slice(None), slice(None), pl.ds(pl.multiple_of(offset, QUERY_STEP), form.queries))
    source = r.q.at[offset] if form.packed else r.q.at[along]
    return pltpu.make_async_copy(source, r.q_place.at[side], r.arrived.at[_Q, side])


def _new_copy(r: Refs, item: jax.Array, side: jax.Array | int) -> Any:
    return pltpu.make_async_copy(r.new.at[r.blocks[ROW, item]], r.new_place.at[side], r.arrived.at[_NEW, side])


def _start_queries(r: Refs, form: Form, item: jax.Array, side: jax.Array | int) -> None:
    _queries_copy(r, form, item, side).start()
    if form.writes:
        _new_copy(r, item, side).start()


def _each_page(r: Refs, form: Form, item: jax.Array, tile: jax.Array | int, side: Any, place: Any, what: str) -> None:
    """Starts the copies of a tile's pages, or waits for them; pages beyond the block's last key are not copied."""
    span = _span(r, form, item)
    begin = span.page + tile * form.per_tile
    count = jnp.minimum(pl.cdiv(span.end, form.page) - begin, form.per_tile)

    def page(index: jax.Array, _: None) -> None:
        source = r.kv.at[r.info[1], r.ids[side, 0, begin + index]]
        getattr(pltpu.make_async_copy(source, r.tile.at[place, index], r.arrived.at[_TILE, place]), what)()

    jax.lax.fori_loop(0, count, page, None)


def _each_group(
    r: Refs, form: Form, item: jax.Array, tile: jax.Array, side: jax.Array, place: jax.Array, span: Span, what: str
) -> None:
    """Puts the block's own K and V into the tile, in groups of `sub` rows, and sends those to the pages; or waits."""
    begin = (span.page + tile * form.per_tile) * form.page
    for group in range(r.back.shape[0]):
        key = (span.start // form.sub + group) * form.sub
        inside = (key < span.end) & (key >= begin) & (key < begin + form.per_tile * form.page)

        @pl.when(inside)
        def _(group: int = group, key: jax.Array = key) -> None:
            index = (key - begin) // form.page
            rows = pl.ds(pl.multiple_of(jax.lax.rem(key, form.page), form.sub), form.sub)
            target = r.kv.at[r.info[1], r.ids[side, 0, key // form.page], :, :, rows]
            copy = pltpu.make_async_copy(r.back.at[group], target, r.arrived.at[_BACK, 0])
            if what == "wait":
                copy.wait()
                return
            old = r.tile[place, index, :, :, rows, :].astype(jnp.float32)
            merged = _merged(old, r.new_place[side], key - span.start, span.end - span.start)
            r.tile[place, index, :, :, rows, :] = merged.astype(r.tile.dtype)
            r.back[group] = merged.astype(r.back.dtype)
            copy.start()


def _merged(old: jax.Array, new: jax.Array, skipped: jax.Array, count: jax.Array) -> jax.Array:
    """old [S, Hkv, sub, W] with the tokens of new [S, Hkv, Q, W] that belong there; its row i is token i + skipped."""
    token = jax.lax.broadcasted_iota(jnp.int32, old.shape, 2) + skipped
    for index in range(new.shape[2]):
        here = (token == index) & (index < count)
        old = jnp.where(here, jnp.broadcast_to(new[:, :, index : index + 1], old.shape), old)
    return old


def _clear_outside(r: Refs, form: Form, tile: jax.Array, place: jax.Array, span: Span) -> None:
    """Zeroes the V of a tile's keys that no query sees: it may be NaN, and 0 times that is not 0."""
    begin = (span.page + tile * form.per_tile) * form.page
    length, values = form.per_tile * form.page, r.tile.shape[2] - 1

    def page(index: jax.Array, _: None) -> None:
        low = begin + index * form.page

        @pl.when((low < span.first) | (low + form.page > span.end))
        def _() -> None:
            value = r.tile[place, index, values]
            key = low + jax.lax.broadcasted_iota(jnp.int32, value.shape, 1)
            held = (key >= span.first) & (key < span.end)
            r.tile[place, index, values] = jnp.where(held, value.astype(jnp.float32), 0).astype(value.dtype)

    @pl.when((begin < span.first) | (begin + length > span.end))
    def _() -> None:
        jax.lax.fori_loop(0, form.per_tile, page, None)


def _add_tile(r: Refs, form: Form, tile: jax.Array, side: jax.Array, place: jax.Array, span: Span) -> None:
    """Online softmax over one tile, head by head."""
    heads, rows = r.total.shape[:2]
    keys = form.per_tile * form.page
    query = span.start + jax.lax.rem(jax.lax.broadcasted_iota(jnp.int32, (rows, keys), 0), form.queries)
    key = (span.page + tile * form.per_tile) * form.page + jax.lax.broadcasted_iota(jnp.int32, (rows, keys), 1)
    seen = key <= query
    if form.window is not None:
        seen &= key > query - form.window

    def head(index: Any, _: None) -> None:
        q = r.q_place[side, index].reshape(rows, -1)
        k = r.tile[place, :, 0, index].reshape(keys, -1).astype(q.dtype)
        v = r.tile[place, :, r.tile.shape[2] - 1, index].reshape(keys, -1)[:, slice(*form.value)].astype(q.dtype)
        precision = jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
        scores = jax.lax.dot_general(
            q, k, (((1,), (1,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
        )
        scores = scores * (form.scale * r.floats[0] if form.scaled else form.scale)
        if form.soft_cap is not None:
            scores = form.soft_cap * jnp.tanh(scores / form.soft_cap)
        scores = jnp.where(seen, scores, _NEVER)
        before = r.highest[index]
        highest = jnp.maximum(before, scores.max(axis=1, keepdims=True))
        weights = jnp.exp(scores - highest[:, :1])
        keep = jnp.exp(before - highest)
        added = jnp.dot(weights.astype(q.dtype), v, precision=precision, preferred_element_type=jnp.float32)
        r.highest[index] = highest
        r.weight[index] = r.weight[index] * keep + weights.sum(axis=1, keepdims=True)
        r.total[index] = r.total[index] * keep[:, :1] + added

    jax.lax.fori_loop(0, heads, head, None, unroll=heads <= 8)


def _finish(r: Refs, form: Form, side: jax.Array) -> None:
    heads, rows = r.total.shape[:2]
    of_head = jax.lax.broadcasted_iota(jnp.int32, (rows, r.highest.shape[2]), 0) // form.queries

    def head(index: Any, _: None) -> None:
        weight, total = r.weight[index], r.total[index]
        if form.sinks:
            sink = jnp.zeros_like(weight)
            for query_head in range(form.group):
                sink = jnp.where(of_head == query_head, r.floats[2 + index * form.group + query_head], sink)
            highest = jnp.maximum(r.highest[index], sink)
            keep = jnp.exp(r.highest[index] - highest)
            weight, total = weight * keep + jnp.exp(sink - highest), total * keep[:, :1]
        out = total / weight[:, :1]
        if form.scaled:
            out = out * r.floats[1]
        r.out_place[side, index] = out.reshape(r.out_place.shape[2:]).astype(r.out_place.dtype)

    jax.lax.fori_loop(0, heads, head, None, unroll=heads <= 8)


def _out_copies(r: Refs, form: Form, item: jax.Array, side: jax.Array, what: str) -> None:
    """Sends a block's results, or waits for that. Part of a block goes in pieces of 16 tokens times a power of two."""
    offset = r.blocks[OFFSET, item]
    if form.packed:
        getattr(pltpu.make_async_copy(r.out_place.at[side], r.out.at[offset], r.arrived.at[_OUT, side]), what)()
        return
    steps = pl.cdiv(r.blocks[COUNT, item], QUERY_STEP)
    done, size = jnp.int32(0), form.queries // QUERY_STEP
    while size:

        @pl.when((steps & size) != 0)
        def _(done: jax.Array = done, size: int = size) -> None:
            source = pl.ds(pl.multiple_of(done * QUERY_STEP, QUERY_STEP), size * QUERY_STEP)
            target = pl.ds(pl.multiple_of(offset + done * QUERY_STEP, QUERY_STEP), size * QUERY_STEP)
            copy = pltpu.make_async_copy(
                r.out_place.at[side, :, :, source], r.out.at[:, :, target], r.arrived.at[_OUT, side]
            )
            getattr(copy, what)()

        done += steps & size
        size //= 2
