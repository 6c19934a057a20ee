"""Writes K and V of long rows into their pages on TPU, in place, in pieces of as many tokens as a tile has rows.

A piece that begins or ends inside of such a group brings the group in, changes it and sends it back; a whole one is
only sent. Four pieces are on their way at once.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxinfer_kernels.layouts import heads_rows
from jaxinfer_kernels.rows import RaggedRows

_PLACES = 4
_LAG = 2  # pieces that arrive before the first is worked on
_PAGE, _SLOT, _LOW, _HIGH = range(4)


def sublanes(dtype: jnp.dtype) -> int:
    """Rows of a TPU's tile in a type: 8 of four bytes, 16 of two, 32 of one."""
    return 32 // jnp.dtype(dtype).itemsize


def write_rows(
    kv_pages: jax.Array,
    layer: jax.Array | int,
    k: jax.Array,
    v: jax.Array | None,
    rows: RaggedRows,
) -> jax.Array:
    """Writes k [T, Hkv, Dk] and v of every row's tokens to kv_pages [L, N, S, Hkv, page, W], which is donated."""
    tokens, page = k.shape[0], kv_pages.shape[4]
    sub = min(sublanes(kv_pages.dtype), page)
    first = rows.start // sub
    counts = jnp.where(rows.count > 0, -(-(rows.start + rows.count) // sub) - first, 0)
    ends = jnp.cumsum(counts)
    index = jnp.arange(_most_pieces(tokens, rows.count.shape[0], sub), dtype=jnp.int32)
    row = jnp.minimum(jnp.searchsorted(ends, index, side="right", method="compare_all"), rows.count.shape[0] - 1)
    position = (first[row] + index - (ends - counts)[row]) * sub
    token = rows.offset[row][:, None] + position[:, None] + jnp.arange(sub) - rows.start[row][:, None]
    new = heads_rows(k, v, kv_pages.shape[2], kv_pages.shape[5])[jnp.clip(token, 0, tokens - 1)]
    piece = jnp.stack(
        [
            rows.page_table.at[row, position // page].get(mode="clip"),
            position % page,
            jnp.maximum(rows.start[row] - position, 0),
            jnp.minimum(rows.start[row] + rows.count[row] - position, sub),
        ]
    )
    info = jnp.stack([ends[-1], jnp.asarray(layer)]).astype(jnp.int32)
    return _call(kv_pages, piece.astype(jnp.int32), info, new.transpose(0, 2, 3, 1, 4))


def _most_pieces(tokens: int, rows: int, sub: int) -> int:
    """Pieces that so many tokens of so many rows take at most: a row of two may lie in two, each `sub` more add one."""
    return min(tokens, 2 * rows) + max(tokens - 2 * rows, 0) // sub


def _call(kv_pages: jax.Array, piece: jax.Array, info: jax.Array, new: jax.Array) -> jax.Array:
    """piece: [4, C], page, slot, and first and end of the rows that are new. new: [C, S, Hkv, sub, W]."""
    return pl.pallas_call(
        _kernel,
        out_shape=jax.ShapeDtypeStruct(kv_pages.shape, kv_pages.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(1,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)] * 2,
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=[
                pltpu.VMEM((_PLACES, *new.shape[1:]), new.dtype),
                pltpu.VMEM((_PLACES, *new.shape[1:]), new.dtype),
                pltpu.SemaphoreType.DMA((3, _PLACES)),
            ],
        ),
        input_output_aliases={3: 0},
        name="write_kv",
    )(piece, info, new, kv_pages)


def _kernel(piece: Any, info: Any, new: Any, _: Any, kv: Any, fresh: Any, old: Any, arrived: Any) -> None:
    total, sub = info[0], fresh.shape[3]

    def target(index: jax.Array) -> Any:
        rows = pl.ds(pl.multiple_of(piece[_SLOT, index], sub), sub)
        return kv.at[info[1], piece[_PAGE, index], :, :, rows]

    def coming(index: jax.Array) -> Any:
        place = jax.lax.rem(index, _PLACES)
        return pltpu.make_async_copy(new.at[index], fresh.at[place], arrived.at[0, place])

    def before(index: jax.Array) -> Any:
        place = jax.lax.rem(index, _PLACES)
        return pltpu.make_async_copy(target(index), old.at[place], arrived.at[1, place])

    def going(index: jax.Array) -> Any:
        place = jax.lax.rem(index, _PLACES)
        return pltpu.make_async_copy(fresh.at[place], target(index), arrived.at[2, place])

    def partial(index: jax.Array) -> jax.Array:
        return (piece[_LOW, index] > 0) | (piece[_HIGH, index] < sub)

    def bring(index: jax.Array) -> None:
        coming(index).start()
        pl.when(partial(index))(lambda: before(index).start())

    def send(index: jax.Array) -> None:
        coming(index).wait()

        @pl.when(partial(index))
        def _() -> None:
            before(index).wait()
            place = jax.lax.rem(index, _PLACES)
            row = jax.lax.broadcasted_iota(jnp.int32, fresh.shape[1:], 2)
            mine = (row >= piece[_LOW, index]) & (row < piece[_HIGH, index])
            merged = jnp.where(mine, fresh[place].astype(jnp.float32), old[place].astype(jnp.float32))
            fresh[place] = merged.astype(fresh.dtype)

        going(index).start()

    def step(index: jax.Array, _: None) -> None:
        @pl.when((index >= _PLACES) & (index - _PLACES < total))
        def _() -> None:
            going(index - _PLACES).wait()

        pl.when(index < total)(lambda: bring(index))
        pl.when((index >= _LAG) & (index - _LAG < total))(lambda: send(index - _LAG))

    jax.lax.fori_loop(0, jnp.where(total > 0, total + _PLACES, 0), step, None)
