"""The `mosaic_tpu` backend of ragged paged attention: arranges queries for the kernel, and its results for the caller.

What the kernel reads and writes lies in HBM in forms whose slices begin where a TPU's tiles begin. A short row is one
block: its query heads and tokens, packed, along the first axis. Long rows lie along tokens, each from a multiple of 16.
"""

from functools import partial
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxinfer_kernels.layouts import LANES, heads_rows, widened
from jaxinfer_kernels.rows import QueryBlocks, RaggedRows, split_rows, token_rows
from jaxinfer_kernels.scoring import Scoring
from jaxinfer_kernels.tpu.attention_blocks import LEAST_KEYS, PIECE_KEYS, PIECE_ROWS, QUERY_STEP, TpuBlocks
from jaxinfer_kernels.tpu.attention_copies import Form, Refs
from jaxinfer_kernels.tpu.attention_kernel import attention_kernel
from jaxinfer_kernels.tpu.kv_write import sublanes, write_rows

_VMEM_SPARE = 8 << 20


class Problem(NamedTuple):
    """One call. q: [T, Hq, Dk]. k, v: [T, Hkv, D], in the pages' type. kv_pages: [L, N, S, Hkv, page, W].

    value: lanes of V in its row.
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array | None
    kv_pages: jax.Array
    layer: jax.Array | int
    rows: RaggedRows
    value: tuple[int, int]
    scoring: Scoring
    blocks: TpuBlocks

    @property
    def group(self) -> int:
        """Query heads a KV head."""
        return self.q.shape[1] // self.kv_pages.shape[3]

    @property
    def by_token(self) -> bool:
        """True where a token's query heads fill tiles: long rows then need not be arranged."""
        return self.kv_pages.shape[3] == 1 and self.group % sublanes(self.q.dtype) == 0

    def pages(self, keys: int) -> int:
        """Pages of a tile of so many keys: no more than a row may have, rounded up to a power of two."""
        pages = -(-keys // self.kv_pages.shape[4])
        return min(pages, 1 << (self.rows.page_table.shape[1] - 1).bit_length())


class Arranged(NamedTuple):
    """Queries as the kernel takes them, the blocks among them, and K and V that it has to write, if any."""

    q: jax.Array
    blocks: QueryBlocks
    new: jax.Array | None
    queries: int


def attend_tpu(problem: Problem, short_rows: int | jax.Array, short_len: int) -> tuple[jax.Array, jax.Array]:
    """Writes k and v, and attends; returns (out [T, Hq, Dv], kv_pages).

    Rows of at most `short_len` tokens are short wherever they stand, unless it is known that no row is.
    """
    rows, tokens = problem.rows, problem.q.shape[0]
    places, index = token_rows(rows, tokens), jnp.arange(rows.count.shape[0], dtype=jnp.int32)
    known = short_rows if isinstance(short_rows, int) else None
    is_short = (index < short_rows) | (rows.count <= short_len) if known != 0 else jnp.zeros(index.shape, bool)
    out = jnp.zeros((tokens, problem.q.shape[1], problem.value[1] - problem.value[0]), problem.q.dtype)
    if known != index.shape[0]:
        long = rows._replace(count=jnp.where(is_short, 0, rows.count))
        out, kv_pages = _attend_long(problem, long, tokens if known == 0 else tokens // (short_len + 1))
        problem = problem._replace(kv_pages=kv_pages)
    if known != 0:
        short = QueryBlocks(index, rows.start, rows.offset, jnp.where(is_short, rows.count, 0))
        some, kv_pages = _attend_short(problem, short, short_len)
        problem = problem._replace(kv_pages=kv_pages)
        out = some if known == index.shape[0] else jnp.where(is_short[places.row][:, None, None], some, out)
    return jnp.where(places.real[:, None, None], out, 0), problem.kv_pages


def _attend_short(problem: Problem, short: QueryBlocks, queries: int) -> tuple[jax.Array, jax.Array]:
    tokens, kv_heads = problem.q.shape[0], problem.kv_pages.shape[3]
    count = short.row.shape[0]
    token = jnp.minimum(short.offset[:, None] + jnp.arange(queries), tokens - 1)
    q = problem.q[token].reshape(count, queries, kv_heads, problem.group, -1)
    q = q.transpose(0, 2, 3, 1, 4).reshape(count, kv_heads, queries * problem.group, -1)
    width, step = problem.kv_pages.shape[-1], sublanes(q.dtype)
    q = jnp.pad(q, ((0, 0), (0, 0), (0, -q.shape[2] % step), (0, width - q.shape[3])))
    new = heads_rows(problem.k, problem.v, problem.kv_pages.shape[2], width)[token].transpose(0, 2, 3, 1, 4)
    order = jnp.argsort(short.count == 0, stable=True)
    blocks = QueryBlocks(*(x[order] for x in short._replace(offset=short.row)))
    out, kv_pages = _call(problem, Arranged(q, blocks, new.astype(jnp.float32), queries))
    out = out[:, :, : queries * problem.group, slice(*_kept(problem))]
    out = out.reshape(count, kv_heads, problem.group, queries, -1).transpose(0, 3, 1, 2, 4)
    places = token_rows(problem.rows, tokens)
    return out[places.row, jnp.minimum(places.within, queries - 1)].reshape(tokens, problem.q.shape[1], -1), kv_pages


def _attend_long(problem: Problem, rows: RaggedRows, most: int) -> tuple[jax.Array, jax.Array]:
    """rows: short ones have no tokens. most: others there can be; each takes up to 15 places more than it has."""
    tokens, queries, counts = problem.q.shape[0], problem.blocks.query_tokens, rows.count
    _, long = split_rows(rows, 0, tokens, queries)
    assert long is not None
    kv_pages = write_rows(problem.kv_pages, problem.layer, problem.k, problem.v, rows)
    problem = problem._replace(kv_pages=kv_pages)
    if problem.by_token:
        q = jnp.pad(widened(problem.q, kv_pages.shape[-1]), ((0, queries), (0, 0), (0, 0)))
        out, kv_pages = _call(problem, Arranged(q, long, None, queries))
        return out[:tokens, :, slice(*_kept(problem))], kv_pages
    ends = jnp.cumsum(-(-counts // QUERY_STEP) * QUERY_STEP)
    begins = ends - -(-counts // QUERY_STEP) * QUERY_STEP
    total = (tokens + (QUERY_STEP - 1) * min(most, counts.shape[0])) // QUERY_STEP * QUERY_STEP
    at = jnp.arange(total + queries, dtype=jnp.int32)
    row = jnp.minimum(jnp.searchsorted(ends, at, side="right", method="compare_all"), counts.shape[0] - 1)
    token = jnp.clip(rows.offset[row] + at - begins[row], 0, tokens - 1)
    kv_heads, width = kv_pages.shape[3], kv_pages.shape[-1]
    q = widened(problem.q, width)[token].reshape(total + queries, kv_heads, problem.group, width).transpose(1, 2, 0, 3)
    blocks = long._replace(offset=begins[long.row] + long.offset - rows.offset[long.row])
    out, kv_pages = _call(problem, Arranged(q, blocks, None, queries))
    places = token_rows(rows, tokens)
    place = jnp.clip(begins[places.row] + places.within, 0, total - 1)
    kept = slice(*_kept(problem))
    if kept != slice(0, out.shape[3]):
        # Whole rows are gathered first: for a part of them XLA would copy `out` with the group last, padded to 128.
        out, place = jax.lax.optimization_barrier(out[:, :, place]), slice(None)
    out = out[:, :, place, kept].transpose(2, 0, 1, 3)
    return out.reshape(tokens, problem.q.shape[1], -1), kv_pages


def _lanes(problem: Problem) -> tuple[int, int]:
    """The lanes of V's row that the kernel multiplies: whole tiles that hold V."""
    low, high = problem.value
    return low // LANES * LANES, min(-(-high // LANES) * LANES, problem.kv_pages.shape[-1])


def _kept(problem: Problem) -> tuple[int, int]:
    """Return the begin and the end of V within those lanes."""
    low, high = problem.value
    return low - _lanes(problem)[0], high - _lanes(problem)[0]


def _call(problem: Problem, arranged: Arranged) -> tuple[jax.Array, jax.Array]:
    """Runs the kernel; returns its results, in the form of `arranged.q`, and the pages."""
    kv, q, new = problem.kv_pages, arranged.q, arranged.new
    packed = new is not None
    lanes, blocks = _lanes(problem), problem.blocks
    per_tile = problem.pages(blocks.keys if packed else blocks.long_keys or blocks.keys)
    form = Form(
        queries=arranged.queries,
        packed=packed,
        by_token=not packed and problem.by_token,
        group=problem.group,
        page=kv.shape[4],
        per_tile=per_tile,
        piece_rows=q.shape[2] if packed else _piece_rows(problem, arranged.queries),
        piece_pages=per_tile if packed else _divisor(per_tile, PIECE_KEYS // kv.shape[4]),
        least_pages=max(LEAST_KEYS // kv.shape[4], 1),
        sub=min(sublanes(kv.dtype), kv.shape[4]),
        value=lanes,
        scale=problem.scoring.scale,
        window=problem.scoring.window,
        soft_cap=problem.scoring.soft_cap,
        sinks=problem.scoring.sinks is not None,
        scaled=problem.scoring.k_scale is not None,
    )
    table = problem.rows.page_table
    table = jnp.pad(table, ((0, 0), (0, -table.shape[1] % LANES)))[:, None]
    info = jnp.stack([jnp.sum(arranged.blocks.count > 0), jnp.asarray(problem.layer)]).astype(jnp.int32)
    out_shape = jax.ShapeDtypeStruct((*q.shape[:-1], lanes[1] - lanes[0]), q.dtype)
    scratch = _scratch(form, q, kv, table.shape[-1], lanes[1] - lanes[0], new)
    inputs = [table, q, *([new] if new is not None else []), kv]
    kernel = partial(_kernel, form=form)
    out, kv = pl.pallas_call(
        kernel,
        out_shape=(out_shape, jax.ShapeDtypeStruct(kv.shape, kv.dtype)),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(blocks.cores,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)] * len(inputs),
            out_specs=(pl.BlockSpec(memory_space=pl.ANY),) * 2,
            scratch_shapes=scratch,
        ),
        input_output_aliases={3 + len(inputs) - 1: 1},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",), vmem_limit_bytes=_vmem(form, scratch) + _VMEM_SPARE
        ),
        name="attention_" + ("short" if packed else "long"),
    )(jnp.stack(arranged.blocks), info, _floats(problem), *inputs)
    return out, kv


def _piece_rows(problem: Problem, queries: int) -> int:
    """Rows of some of a KV head's query heads, or of some tokens; fewer where values are wide."""
    most = PIECE_ROWS if problem.kv_pages.shape[-1] <= 2 * LANES else PIECE_ROWS // 2
    one, count = (problem.group, queries) if problem.by_token else (queries, problem.group)
    return one * _divisor(count, most // one)


def _divisor(number: int, most: int) -> int:
    """The largest divisor of `number` that is at most `most`, or 1."""
    return next((part for part in range(min(number, most), 1, -1) if number % part == 0), 1)


def _kernel(*refs: object, form: Form) -> None:
    blocks, info, floats, table, q, *rest = refs
    new = rest.pop(0) if form.packed else None
    _, out, kv, *scratch = rest
    names = [name for name in Refs._fields[8:] if form.packed or name not in ("new_place", "back")]
    places = {"new_place": None, "back": None} | dict(zip(names, scratch, strict=True))
    attention_kernel(Refs(blocks, info, floats, table, q, new, kv, out, **places), form)


def _floats(problem: Problem) -> jax.Array:
    """Scales of K and V, and a sink a query head."""
    scoring, heads = problem.scoring, problem.q.shape[1]
    scales = [jnp.asarray(1.0 if x is None else x, jnp.float32) for x in (scoring.k_scale, scoring.v_scale)]
    sinks = jnp.zeros(heads, jnp.float32) if scoring.sinks is None else scoring.sinks.astype(jnp.float32)
    return jnp.concatenate([jnp.stack(scales), sinks])


def _scratch(form: Form, q: jax.Array, kv: jax.Array, ids: int, value_lanes: int, new: jax.Array | None) -> list:
    """Return the kernel's scratch memory, in the order of `Refs`."""
    sides, heads, page, width = kv.shape[2:]
    block = q.shape[1:3] if form.packed else (heads, form.group, form.queries)
    block = (form.queries, form.group) if form.by_token else block
    rows = block[-1] if form.packed else form.group * form.queries
    groups = -(-(form.queries - 1) // form.sub) + 1
    return [
        pltpu.SMEM((2, 1, ids), jnp.int32),
        pltpu.VMEM((2, *block, width), q.dtype),
        *([] if new is None else [pltpu.VMEM((2, *new.shape[1:]), new.dtype)]),
        *([] if new is None else [pltpu.VMEM((groups, sides, heads, form.sub, width), kv.dtype)]),
        pltpu.VMEM((2, form.per_tile, sides, heads, page, width), kv.dtype),
        pltpu.VMEM((2, *block, value_lanes), q.dtype),
        pltpu.VMEM((heads, rows, LANES), jnp.float32),
        pltpu.VMEM((heads, rows, LANES), jnp.float32),
        pltpu.VMEM((heads, rows, value_lanes), jnp.float32),
        pltpu.SemaphoreType.DMA((6, 2)),
    ]


def _vmem(form: Form, scratch: list) -> int:
    """Bytes of scratch in VMEM, with what a head's scores and weights take."""
    places = [x for x in scratch if getattr(x, "memory_space", None) == pltpu.VMEM]
    held = sum(prod(x.shape) * jnp.dtype(x.dtype).itemsize for x in places)
    return held + 6 * form.piece_rows * form.piece_pages * form.page * 4
