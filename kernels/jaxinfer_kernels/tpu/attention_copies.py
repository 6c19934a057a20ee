"""Copies of the TPU attention kernel between HBM and scratch memory, double-buffered, and waits for them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxinfer_kernels.tpu.attention_blocks import QUERY_STEP

ROW, START, OFFSET, COUNT = range(4)
"""Fields of a block in `Refs.blocks`, in the order of `rows.QueryBlocks`."""

_IDS, _Q, _NEW, _TILE, _OUT, _BACK = range(6)
_AT_ONCE = 4
"""Copies of pages that are started without a jump between them."""


class Form(NamedTuple):
    """Static parameters of the traced kernel.

    queries: tokens a block holds; row m of its M rows is token m % queries of query head m // queries. packed: blocks
    lie along the first axis of q and out, [R, Hkv, M, W], and bring K and V of their tokens, which go into the pages;
    else they lie along tokens, [Hkv, G, T, W], at multiples of 16. by_token: they lie as [T, G, W], from any token, and
    row m is token m // G of query head m % G; there is one KV head, whose G fills tiles. piece_rows, piece_pages: rows
    of a block and pages of a tile that are multiplied at once; pages that end a row are halved, down to least_pages.
    sub: rows of a page that are written at once. value: lanes of V in its row.
    """

    queries: int
    packed: bool
    by_token: bool
    group: int
    page: int
    per_tile: int
    piece_rows: int
    piece_pages: int
    least_pages: int
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
    """The keys of a block: from `first` to `end`, in `tiles` tiles that begin with page `page`; `pages` in all."""

    item: jax.Array
    start: jax.Array
    first: jax.Array
    end: jax.Array
    page: jax.Array
    pages: jax.Array
    tiles: jax.Array


def span_of(r: Refs, form: Form, item: jax.Array) -> Span:
    """The keys of block `item`."""
    start, count = r.blocks[START, item], r.blocks[COUNT, item]
    first = jnp.int32(0) if form.window is None else jnp.maximum(start - form.window + 1, 0)
    end = start + count
    page = jax.lax.div(first, form.page)
    pages = pl.cdiv(end, form.page) - page
    return Span(item, start, first, end, page, pages, pl.cdiv(pages, form.per_tile))


def ids_copy(r: Refs, item: jax.Array, side: jax.Array | int) -> Any:
    """The page ids of a block's row."""
    return pltpu.make_async_copy(r.table.at[r.blocks[ROW, item]], r.ids.at[side], r.arrived.at[_IDS, side])


def start_queries(r: Refs, form: Form, item: jax.Array, side: jax.Array | int) -> None:
    """Begins to bring a block's queries, and its K and V if it has some to write."""
    for copy in _query_copies(r, form, item, side):
        copy.start()


def wait_queries(r: Refs, form: Form, item: jax.Array, side: jax.Array | int) -> None:
    """Waits for what `start_queries` began."""
    for copy in _query_copies(r, form, item, side):
        copy.wait()


def _query_copies(r: Refs, form: Form, item: jax.Array, side: jax.Array | int) -> list[Any]:
    offset, place = r.blocks[OFFSET, item], r.q_place.at[side]
    if not form.packed:
        source = r.q.at[_tokens(form, offset, form.queries)]
        return [pltpu.make_async_copy(source, place, r.arrived.at[_Q, side])]
    new = pltpu.make_async_copy(r.new.at[r.blocks[ROW, item]], r.new_place.at[side], r.arrived.at[_NEW, side])
    return [pltpu.make_async_copy(r.q.at[offset], place, r.arrived.at[_Q, side]), new]


def _pages_in(form: Form, span: Span, tile: jax.Array | int) -> tuple[jax.Array, jax.Array]:
    """The first page of a tile in its row, and how many the tile has: those beyond the last key are not copied."""
    begin = tile * form.per_tile
    return span.page + begin, jnp.minimum(span.pages - begin, form.per_tile)


def start_pages(r: Refs, form: Form, span: Span, tile: jax.Array | int, side: Any, place: Any) -> None:
    """Begins to bring a tile. side: where the row's page ids are. place: where the tile goes."""
    begin, count = _pages_in(form, span, tile)
    layer = r.info[1]

    def page(index: jax.Array) -> None:
        source = r.kv.at[layer, r.ids[side, 0, begin + index]]
        pltpu.make_async_copy(source, r.tile.at[place, index], r.arrived.at[_TILE, place]).start()

    def several(index: jax.Array, _: None) -> None:
        for one in range(_AT_ONCE):
            page(index * _AT_ONCE + one)

    whole = jax.lax.div(count, _AT_ONCE)
    jax.lax.fori_loop(0, whole, several, None)
    jax.lax.fori_loop(whole * _AT_ONCE, count, lambda index, _: page(index), None)


def wait_pages(r: Refs, form: Form, span: Span, tile: jax.Array, place: jax.Array) -> None:
    """Waits for a tile: for as many bytes as its pages have, in parts of a power of two of them."""
    _, count = _pages_in(form, span, tile)

    def wait(size: int) -> None:
        part = r.tile.at[place, pl.ds(0, size)]
        pltpu.make_async_copy(part, part, r.arrived.at[_TILE, place]).wait()

    _parts(count, form.per_tile, lambda _, size: wait(size))


def _parts(count: jax.Array, most: int, part: Callable[[jax.Array, int], None]) -> None:
    """Calls part(how many were before, size) for sizes, powers of two, that are `count` together."""
    size, done = 1 << (most.bit_length() - 1), jnp.int32(0)
    while size:
        pl.when((count & size) != 0)(lambda done=done, size=size: part(done, size))
        done += count & size
        size //= 2


def send_groups(r: Refs, form: Form, span: Span, tile: jax.Array, side: jax.Array, place: jax.Array) -> None:
    """Puts a block's own K and V into the tile, in groups of `sub` rows, and sends those to the pages."""
    page, length = span.page + tile * form.per_tile, form.per_tile * form.page
    begin = page * form.page

    def send(group: int, key: jax.Array) -> None:
        index = jax.lax.div(key - begin, form.page)
        rows = pl.ds(pl.multiple_of(jax.lax.rem(key, form.page), form.sub), form.sub)
        old = r.tile[place, index, :, :, rows, :].astype(jnp.float32)
        merged = _merged(old, r.new_place[side], key - span.start, span.end - span.start)
        r.tile[place, index, :, :, rows, :] = merged.astype(r.tile.dtype)
        r.back[group] = merged.astype(r.back.dtype)
        _group_copy(r, form, group, r.ids[side, 0, page + index], rows).start()

    @pl.when(begin + length > span.start)
    def _() -> None:
        for group in range(r.back.shape[0]):
            key = _group_key(form, span, group)
            inside = (key < span.end) & (key >= begin) & (key < begin + length)
            pl.when(inside)(lambda group=group, key=key: send(group, key))


def wait_groups(r: Refs, form: Form, span: Span) -> None:
    """Waits until all groups of a block are written: each sends the same number of bytes."""
    for group in range(r.back.shape[0]):
        copy = _group_copy(r, form, group, 0, pl.ds(0, form.sub))
        pl.when(_group_key(form, span, group) < span.end)(copy.wait)


def _group_key(form: Form, span: Span, group: int) -> jax.Array:
    return (jax.lax.div(span.start, form.sub) + group) * form.sub


def _group_copy(r: Refs, form: Form, group: int, page: Any, rows: Any) -> Any:
    return pltpu.make_async_copy(r.back.at[group], r.kv.at[r.info[1], page, :, :, rows], r.arrived.at[_BACK, 0])


def _merged(old: jax.Array, new: jax.Array, skipped: jax.Array, count: jax.Array) -> jax.Array:
    """old [S, Hkv, sub, W] with the tokens of new [S, Hkv, Q, W] that belong there; its row i is token i + skipped."""
    token = jax.lax.broadcasted_iota(jnp.int32, old.shape, 2) + skipped
    for index in range(new.shape[2]):
        here = (token == index) & (index < count)
        old = jnp.where(here, jnp.broadcast_to(new[:, :, index : index + 1], old.shape), old)
    return old


def start_results(r: Refs, form: Form, item: jax.Array, side: jax.Array) -> None:
    """Begins to send a block's results."""
    _results(r, form, item, side, lambda copy: copy.start())


def wait_results(r: Refs, form: Form, item: jax.Array, side: jax.Array) -> None:
    """Waits until they are written."""
    _results(r, form, item, side, lambda copy: copy.wait())


def _results(r: Refs, form: Form, item: jax.Array, side: jax.Array, act: Callable[[Any], None]) -> None:
    """Part of a block goes in pieces of a power of two of tokens, times 16 where tokens lie below each other."""
    offset, arrived = r.blocks[OFFSET, item], r.arrived.at[_OUT, side]
    if form.packed:
        act(pltpu.make_async_copy(r.out_place.at[side], r.out.at[offset], arrived))
        return

    step = 1 if form.by_token else QUERY_STEP

    def part(done: jax.Array, size: int) -> None:
        source = r.out_place.at[(side, *_tokens(form, done * step, size * step))]
        act(pltpu.make_async_copy(source, r.out.at[_tokens(form, offset + done * step, size * step)], arrived))

    _parts(pl.cdiv(r.blocks[COUNT, item], step), form.queries // step, part)


def _tokens(form: Form, first: jax.Array, count: int) -> tuple[Any, ...]:
    """Return the index of `count` tokens in queries or results that are not packed."""
    if form.by_token:
        return (pl.ds(first, count),)
    return slice(None), slice(None), pl.ds(pl.multiple_of(first, QUERY_STEP), count)
