"""Online softmax of the TPU attention kernel over the keys of one tile, in pieces that registers can hold."""

from collections.abc import Callable
from functools import reduce
from math import e, log2
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from jaxinfer_kernels.layouts import LANES
from jaxinfer_kernels.tpu.attention_copies import Form, Refs, Span

_NEVER = -0.7 * float(jnp.finfo(jnp.float32).max)
"""The score of a key that is not seen: finite, so that no difference of two is NaN."""
_LOG2E = log2(e)
"""Scores are kept times this, since the hardware has powers of two."""
_UNROLLED = 8
"""KV heads up to which short rows' are unrolled, so that they overlap."""


def begin_block(r: Refs) -> None:
    """Before the first tile. In `weight` each lane holds a part of the sum; in `highest` all hold the same."""
    r.highest[...] = jnp.full_like(r.highest, _NEVER)
    r.weight[...] = jnp.zeros_like(r.weight)
    r.total[...] = jnp.zeros_like(r.total)


def add_tile(r: Refs, form: Form, tile: jax.Array, side: jax.Array, place: jax.Array, span: Span) -> None:
    """One tile, for all heads, in parts: those that nobody sees are left out, and of a part its end."""
    pages, keys = form.piece_pages, form.piece_pages * form.page
    begin = (span.page + tile * form.per_tile) * form.page

    def part(index: jax.Array | int, _: None) -> None:
        low = begin + index * keys
        wanted, inner = (low < span.end) & (low + keys > span.first), low + keys - 1 <= span.start
        if form.window is not None:
            inner &= low > span.end - 1 - form.window
        needed = pl.cdiv(span.end - low, form.page)
        pl.when(wanted & inner)(lambda: _add_pages(r, form, side, place, index * pages, pages, None))
        for size, fits in _sizes(pages, form.least_pages, needed):

            @pl.when(wanted & ~inner & fits)
            def _(size: int = size) -> None:
                _clear_outside(r, form, place, index * pages, size, low, span)
                _add_pages(r, form, side, place, index * pages, size, span.start - low)

    jax.lax.fori_loop(0, form.per_tile // pages, part, None)


def _clear_outside(r: Refs, form: Form, place: Any, first: Any, pages: int, low: jax.Array, span: Span) -> None:
    """Zeroes the V of keys that no query sees, in pages from `first`, whose first key is `low`: it may be NaN, and 0
    times that is not 0."""
    values = r.tile.shape[2] - 1

    def page(index: jax.Array, _: None) -> None:
        begin = low + index * form.page

        @pl.when((begin < span.first) | (begin + form.page > span.end))
        def _() -> None:
            value = r.tile[place, first + index, values]
            key = begin + jax.lax.broadcasted_iota(jnp.int32, value.shape, 1)
            held = (key >= span.first) & (key < span.end)
            r.tile[place, first + index, values] = jnp.where(held, value.astype(jnp.float32), 0).astype(value.dtype)

    jax.lax.fori_loop(0, pages, page, None)


def _sizes(most: int, least: int, needed: jax.Array) -> list[tuple[int, jax.Array]]:
    """All of `most` pages, half of them and so on down to `least`, and whether it is the smallest that is enough."""
    sizes = [most]
    while sizes[-1] > least:
        sizes.append(-(-sizes[-1] // 2))
    below = [*sizes[1:], 0]
    return [
        (size, (needed > lower) & ((needed <= size) | (size == most))) for size, lower in zip(sizes, below, strict=True)
    ]


def _add_pages(r: Refs, form: Form, side: Any, place: Any, first: Any, pages: int, ahead: jax.Array | None) -> None:
    """Some pages of a tile, from `first`; ahead: start of the block less that of the pages, where scores are masked."""
    here = pl.ds(first, pages)
    _each_piece(r, form, lambda head, piece: _add_piece(r, form, side, place, head, piece, here, ahead))


def _each_piece(r: Refs, form: Form, act: Callable[[Any, Any], None]) -> None:
    """act(KV head, number of a piece of its rows) for all."""
    heads, rows = r.total.shape[:2]
    pieces = rows // form.piece_rows

    def step(index: jax.Array, _: None) -> None:
        act(jax.lax.div(index, pieces), jax.lax.rem(index, pieces))

    jax.lax.fori_loop(0, heads * pieces, step, None, unroll=form.packed and heads <= _UNROLLED)


def _add_piece(
    r: Refs, form: Form, side: Any, place: Any, head: Any, piece: Any, pages: Any, ahead: jax.Array | None
) -> None:
    q = r.q_place[_queries(form, side, head, piece)].reshape(form.piece_rows, -1)
    k, v = (r.tile[place, pages, i, head].reshape(-1, q.shape[1]) for i in (0, r.tile.shape[2] - 1))
    k, v = k.astype(q.dtype), v[:, slice(*form.value)].astype(q.dtype)
    precision = jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
    scores = jax.lax.dot_general(
        q, k, (((1,), (1,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
    )
    scores = _scaled(r, form, scores)
    if ahead is not None:
        first = _token(form, piece * form.piece_rows) if form.by_token else 0
        scores = jnp.where(_seen(form, scores.shape, ahead + first), scores, _NEVER)
    at = head, _rows(form, piece)
    before = r.highest[at]
    highest = jnp.maximum(before, scores.max(axis=1, keepdims=True))
    weights = jnp.exp2(scores - _wide(highest, scores.shape[1]))
    keep = jnp.exp2(before - highest)
    added = jnp.dot(weights.astype(q.dtype), v, precision=precision, preferred_element_type=jnp.float32)
    r.highest[at] = highest
    r.weight[at] = r.weight[at] * keep + _folded(weights)
    r.total[at] = r.total[at] * _wide(keep, added.shape[1]) + added


def _queries(form: Form, side: Any, head: Any, piece: Any) -> tuple[Any, ...]:
    """Return the index of a piece of a block's rows in its queries or results; see `Form`."""
    if form.packed:
        return side, head
    if form.by_token:
        tokens = form.piece_rows // form.group
        return side, pl.ds(piece * tokens, tokens)
    heads = form.piece_rows // form.queries
    return side, head, pl.ds(piece * heads, heads)


def _rows(form: Form, piece: Any) -> Any:
    """Return the index of a piece among M rows."""
    return slice(None) if form.packed else pl.ds(pl.multiple_of(piece * form.piece_rows, 16), form.piece_rows)


def _scaled(r: Refs, form: Form, scores: jax.Array) -> jax.Array:
    scale = form.scale * r.floats[0] if form.scaled else form.scale
    if form.soft_cap is None:
        return scores * (scale * _LOG2E)
    return form.soft_cap * _LOG2E * jnp.tanh(scores * (scale / form.soft_cap))


def _token(form: Form, row: Any) -> Any:
    """The token of a block that a row belongs to."""
    return jax.lax.div(row, form.group) if form.by_token else jax.lax.rem(row, form.queries)


def _seen(form: Form, shape: tuple[int, ...], ahead: jax.Array) -> jax.Array:
    """Return the mask of keys that queries see, [rows, keys]. ahead: first query's position less the first key's."""
    query = _token(form, jax.lax.broadcasted_iota(jnp.int32, shape, 0))
    behind = jax.lax.broadcasted_iota(jnp.int32, shape, 1) - query
    seen = behind <= ahead
    if form.window is not None:
        seen &= behind > ahead - form.window
    return seen


def _wide(x: jax.Array, lanes: int) -> jax.Array:
    """[rows, 128], all lanes of a row the same, with as many lanes as wanted."""
    return jnp.concatenate([x] * -(-lanes // LANES), axis=1)[:, :lanes]


def _folded(x: jax.Array) -> jax.Array:
    """[rows, keys] to [rows, 128] of the same sum a row."""
    if x.shape[1] % LANES == 0:
        return reduce(jnp.add, [x[:, low : low + LANES] for low in range(0, x.shape[1], LANES)])
    lane = jax.lax.broadcasted_iota(jnp.int32, (x.shape[0], LANES), 1)
    return jnp.where(lane == 0, x.sum(axis=1, keepdims=True), 0)


def finish_block(r: Refs, form: Form, side: jax.Array) -> None:
    """After the last tile: results of a block."""
    _each_piece(r, form, lambda head, piece: _finish_piece(r, form, side, head, piece))


def _finish_piece(r: Refs, form: Form, side: Any, head: Any, piece: Any) -> None:
    at = head, _rows(form, piece)
    total, weight = r.total[at], r.weight[at].sum(axis=1, keepdims=True)
    weight = jnp.broadcast_to(weight, (form.piece_rows, LANES))
    if form.sinks:
        sink = _sinks(r, form, head, piece)
        highest = jnp.maximum(r.highest[at], sink)
        keep = jnp.exp2(r.highest[at] - highest)
        weight, total = weight * keep + jnp.exp2(sink - highest), total * _wide(keep, total.shape[1])
    out = total / _wide(weight, total.shape[1])
    if form.scaled:
        out = out * r.floats[1]
    where = _queries(form, side, head, piece)
    r.out_place[where] = out.reshape(r.out_place.at[where].shape).astype(r.out_place.dtype)


def _sinks(r: Refs, form: Form, head: Any, piece: Any) -> jax.Array:
    """[rows, 128]: the sink of each row's query head."""
    row = piece * form.piece_rows + jax.lax.broadcasted_iota(jnp.int32, (form.piece_rows, LANES), 0)
    of_head = jax.lax.rem(row, form.group) if form.by_token else jax.lax.div(row, form.queries)
    sink = jnp.zeros(row.shape, jnp.float32)
    for query_head in range(form.group):
        sink = jnp.where(of_head == query_head, r.floats[2 + head * form.group + query_head] * _LOG2E, sink)
    return sink
